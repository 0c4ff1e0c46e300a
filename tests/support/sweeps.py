"""Sweeps of a small configuration, whose points are functions instead of runs."""

import contextlib
import importlib.util
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.problems import ConfigError, Problem
from launcher.sweep.plan import SweepPlan, plan_sweep
from launcher.sweep.request import PointResult, SweepRequest, is_hydra_override
from launcher.sweep.run import sweep

GROUPS = {"rollout": ["embedded", "sglang", "vllm"], "algorithm": ["dapo", "grpo"], "actor": ["tiny"]}
NAMES = ["actor", "rollout", "gconfig", "launcher", "seed", "trial_name"]


def plugin(module: str) -> Any:
    """A test of a plugin that may be missing; what others' code warns about is theirs to mend."""
    result = importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(f"hydra_plugins.{module}")
    missing = pytest.mark.skipif(not result, reason=f"the package {module.replace('_', '-')} is not installed here")
    return lambda test: pytest.mark.filterwarnings("ignore")(missing(test))


needs_joblib = plugin("hydra_joblib_launcher")
needs_optuna = plugin("hydra_optuna_sweeper")


def request(*words: str, **more: Any) -> SweepRequest:
    own = [word for word in words if is_hydra_override(word)]
    rest = [word for word in words if not is_hydra_override(word)]
    more = {"groups": GROUPS, "names": NAMES, "aliases": {"actor.lr": "actor.optimizer.lr"}, **more}
    return SweepRequest(rest, "r0001", own, **more)


def plan(*words: str, **more: Any) -> SweepPlan:
    return plan_sweep(request(*words, **more))


def points(*words: str, **more: Any) -> list[list[str]]:
    result = plan(*words, **more).points
    return [result.overrides(result.values(number)) for number in range(len(result))]


def refused(*words: str, **more: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        plan(*words, **more)
    return {problem.key: problem.message for problem in caught.value.problems}


def value(overrides: Sequence[str], key: str) -> float:
    return next(float(text.partition("=")[2]) for text in overrides if text.partition("=")[0] == key)


def accept(_overrides: list[str]) -> list[Problem]:
    return []


def positive(overrides: list[str]) -> list[Problem]:
    bad = [text for text in overrides if text.startswith("actor.lr=") and value([text], "actor.lr") <= 0]
    return [Problem("actor.optimizer.lr", "must be greater than 0", f"override {text}") for text in bad]


def run_seed(overrides: list[str], trial: str, _number: int) -> PointResult:
    """A run that is the better, the nearer its seed is to 3, and fails at 13."""
    seed = value(overrides, "seed")
    if seed == 13:
        raise RuntimeError("unlucky")
    Path("runs", trial).mkdir(parents=True)
    return PointResult(-abs(seed - 3.0), {"process": os.getpid()}, Path("runs", trial))


class Sweep:
    """A sweep that has run, and what it has left."""

    def __init__(self, *words: str, check: Any = accept, run: Any = run_seed, **more: Any) -> None:
        out, err, printed = io.StringIO(), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.code = sweep(request(*words, **more), check, run, out, err)
        self.out, self.err, self.printed = out.getvalue(), err.getvalue(), printed.getvalue()
        self.directories = sorted(Path("multirun").glob("*/*"))

    def records(self) -> list[dict[str, Any]]:
        [directory] = self.directories
        result = [json.loads(path.read_text()) for path in directory.glob("*/point.json")]
        return sorted(result, key=lambda record: record["number"])
