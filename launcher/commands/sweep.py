"""`--multirun`: runs or plans every point of a sweep through Hydra's sweepers."""

import gc
import json
import os
import sys
from typing import Any

from areal_like.api import run_command
from areal_like.config.load import Composition, load
from areal_like.config.loaded import Loaded
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sources.overrides import holds_secret, parse_overrides
from areal_like.process.abandoned_memory import remove_abandoned_memory
from areal_like.process.exit_codes import BAD_CONFIGURATION
from areal_like.process.stop_signals import STOP_SIGNALS, handled, stop_command
from launcher.arguments import Arguments
from launcher.commands.run import refuse
from launcher.plan.build import build_plan
from launcher.plan.target_machine import TargetMachine
from launcher.runs.dependent_overrides import recorded_references
from launcher.sweep.report import PlannedPoint, plan_lines
from launcher.sweep.request import PointResult, SweepRequest, hydra_parts, is_hydra_override
from launcher.sweep.run import sweep
from launcher.terminal import has_color

RESULT_KEYS = ("rollout.backend", "actor.path", "total_train_steps")


@handled(STOP_SIGNALS, stop_command)  # between points; while one runs they go to it
def sweep_command(arguments: Arguments) -> int:
    """Checks the points known beforehand, then runs or plans each; returns 2 where one is invalid."""
    gc.enable()  # a sweep takes long
    if not has_color(sys.stderr):
        os.environ["NO_COLOR"] = "1"  # for the logs of sweepers
    one_answer = {"--explain": arguments.explain, "--cfg": arguments.cfg, "--schema": arguments.schema is True or None}
    for flag, value in one_answer.items():
        if value is not None:
            raise ConfigError([Problem(flag, "is for one configuration; remove --multirun", "command line")])
    points = _SweepPlanner(arguments)
    if not points.dry_run:
        remove_abandoned_memory()  # first, as the plans are for the memory that is free
    run_point = points.plan if points.dry_run else points.run
    code = sweep(points.request(), points.check, run_point)
    if points.dry_run and code != BAD_CONFIGURATION:
        points.show()
    return code


class _SweepPlanner:
    """Loads, checks, plans and runs the points of one sweep."""

    def __init__(self, arguments: Arguments) -> None:
        assert arguments.config is not None
        self.config, self.schema_class = arguments.config, arguments.schema_class
        self.dependents = recorded_references(arguments.config)
        self.elsewhere = TargetMachine(arguments.for_machine, arguments.model_config)
        words = [*self.elsewhere.overrides, *arguments.overrides]
        self.overrides = [word for word in words if not is_hydra_override(word)]
        self.hydra = [word for word in arguments.overrides if is_hydra_override(word)]
        self.replace, self.form = arguments.replace, arguments.dry_run
        self.dry_run = arguments.dry_run is not None
        self.plans: list[PlannedPoint] = []
        parsed, problems = parse_overrides(self.overrides)
        if problems:
            raise ConfigError(problems)
        self.fixed = [word.text for word in parsed if not word.parsed.is_sweep_override()]

    def load(self, overrides: list[str]) -> Loaded:
        return load(self.config, overrides, self.schema_class, self.elsewhere.machine, self.dependents)

    def check(self, overrides: list[str]) -> list[Problem]:
        try:
            loaded = self.load(overrides)
            self.elsewhere.host(loaded.config)
            if not self.dry_run:
                refuse(build_plan(loaded, replace_existing=self.replace).problems)
        except ConfigError as error:
            return list(error.problems)
        return []

    def plan(self, overrides: list[str], trial: str, number: int) -> PointResult:
        loaded = self.load(overrides)
        plan = build_plan(loaded, host=self.elsewhere.host(loaded.config), replace_existing=self.replace)
        self.plans.append(PlannedPoint(number, trial, loaded, plan))
        columns = {key: loaded.get(key) for key in RESULT_KEYS if loaded.get(key) is not None}
        if plan.problems:
            columns["obstacles"] = len(plan.problems)
        return PointResult(None, columns, plan.run_dir)

    def show(self) -> None:
        """Prints the plans, below the table."""
        if self.form == "json":
            print(json.dumps([planned.data() for planned in self.plans], indent=1))
            return
        for line in plan_lines(self.plans, whole=self.form == "full"):
            print(line)

    def run(self, overrides: list[str], trial: str, _number: int) -> PointResult:
        """Runs the point as another command, with its own guardian; passes its output through."""
        schema = ["--schema", self.schema_class] if self.schema_class else []
        words = ["--config", self.config, *schema, *(["--replace"] if self.replace else []), *overrides]
        ended = run_command(words)
        if ended.exit_code == BAD_CONFIGURATION:
            raise ConfigError([Problem(trial, ended.errors)])
        summary = ended.summary()
        columns = {"steps": summary.get("steps")}
        if summary.get("score") != summary.get("objective"):
            columns["score"] = summary.get("score")
        return PointResult(summary.get("objective"), columns, ended.directory, ended.exit_code, ended.stop_code)

    def request(self) -> SweepRequest:
        composition = Composition(self.config, self.fixed, self.schema_class)
        section, choices = hydra_parts(_file_parts(composition))
        self._set_direction(section, choices, named="objective" in composition.file.body())
        library, schema = composition.library, composition.schema
        return SweepRequest(
            self.overrides,
            self._trial(),
            self.hydra,
            hydra_section=section,
            hydra_choices=choices,
            groups={group: library.options_of(group) or [] for group in library.options_of("") or []},
            names=[name for name in schema.names() if "." not in name],
            aliases=ALIASES,
            is_secret=lambda key: holds_secret(key, schema),
            run_dir=lambda overrides, _trial: build_plan(self.load(overrides)).run_dir,
            dry_run=self.dry_run,
            quiet=self.form == "json",
        )

    def _set_direction(self, section: dict[str, Any], choices: dict[str, Any], named: bool) -> None:
        """The default objective is the held-out score, which is maximized; Hydra's sweepers minimize by default."""
        sweeper = next(
            (w.partition("=")[2] for w in self.hydra if w.startswith("hydra/sweeper=")), choices.get("hydra/sweeper")
        )
        has_direction = "direction" in (section.get("sweeper") or {}) or any(
            "hydra.sweeper.direction" in w for w in self.hydra
        )
        named = named or any(word.lstrip("+").startswith("objective=") for word in self.overrides)
        if sweeper == "optuna" and not has_direction and not named:
            self.hydra.append("hydra.sweeper.direction=maximize")

    def _trial(self) -> str:
        """The trial name of the whole sweep; job n appends `-n`."""
        try:
            loaded = self.load(self.fixed)
        except ConfigError:
            return "r0001"  # a required key may come from the sweep; the points themselves are checked next
        trial: str = loaded.get("trial_name")
        if trial != "auto":
            return trial
        return build_plan(loaded).run_dir.rstrip("/").rpartition("/")[2]


def _file_parts(composition: Composition) -> dict[str, Any]:
    content = composition.file.root.value if composition.file.root is not None else {}
    return {name: content[name].plain() for name in ("defaults", "hydra") if name in content}
