"""Scores saved answers by a reward model, whose server runs for as long as that takes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.config.sections.reward import NamedReward, RewardConfig
from areal_like.observe.reward_report import ScoredAnswer
from areal_like.process.abandoned_memory import remove_abandoned_memory
from areal_like.process.exit_codes import INTERRUPTED
from areal_like.process.identity import take_token
from areal_like.process.run_memory import memory_folder
from areal_like.rollout.episodes.rewards.bench import SavedAnswer
from areal_like.rollout.episodes.rewards.limits import RewardLimits
from areal_like.rollout.episodes.rewards.served_bench import COUNTS, read_scores, remove_answers, write_answers
from areal_like.rollout.episodes.rewards.spec import RewardSpec
from launcher.command_errors import exit_code_of
from launcher.commands.reward_words import shipped
from launcher.commands.run import fetched_plan, refuse
from launcher.plan.build import build_plan
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.resume import override_value
from launcher.supervisor.added_lines import AddedLines
from launcher.supervisor.guardian import run_guarded
from launcher.supervisor.lifecycle import RunEnding
from launcher.supervisor.serving_run import lock_serving_run

KEY = "reward.args.path"
"""Of the path in the configuration of the server."""
ALONE = ("experiment_name=rewards", "trial_name=auto", "tracker=none", "reward.name=model")


@dataclass(frozen=True)
class ServedReward:
    """The server of a reward model as it will be started."""

    path: str
    loaded: Loaded
    plan: Plan
    run_id: str

    def score(
        self, title: str, spec: RewardSpec, answers: Sequence[SavedAnswer], progress: Callable[[int], None]
    ) -> list[ScoredAnswer]:
        """Starts the server and a process that scores the answers, and ends both. Raises SystemExit with the exit code
        where they fail or are stopped; the reason is printed, and the logs stay after a failure."""
        serving = lock_serving_run(self.loaded, self.plan, self.run_id, False, Purpose.REWARDS)
        if isinstance(serving, int):
            raise SystemExit(serving)
        directory = serving.locked.run.directory
        counts, scored = AddedLines(directory / COUNTS), list[ScoredAnswer]()

        def show() -> None:
            for line in counts.new():
                progress(int(line))

        ending = RunEnding("interrupted", INTERRUPTED)
        try:
            serving.complain(f"{title}: starting the server of the reward model {self.path}")
            write_answers(directory, spec, answers)
            ending = serving.watch_worker(show, serving.complain)
            if ending.outcome == "done":
                scored = read_scores(directory, answers)
        finally:
            remove_answers(directory)
            serving.leave(ending)
        if ending.outcome != "done":
            raise SystemExit(ending.code)
        return scored


def prepare_servers() -> None:
    """To be called before servers are planned: the plan is for the memory that is free."""
    take_token()
    remove_abandoned_memory()


def plan_server(
    model: NamedReward,
    limits: RewardConfig,
    overrides: Sequence[str],
    run_id: str,
    where: str,
    hidden: Mapping[str, Any],
) -> ServedReward:
    """Raises ConfigError where it cannot start here; the problems are those of `model`, which `where` names. Its model
    is fetched from the Hub where it is from there. `hidden`: values of the rewards, whose secrets are hidden."""
    path = str(model.args["path"])
    keys = [f"reward.{name}={json.dumps(getattr(limits, name))}" for name in ("timeout_s", *RewardLimits._fields)]
    words = [*ALONE, f"+{KEY}={override_value(path)}", *keys, f"reward.processes={limits.processes}", *overrides]
    try:
        loaded = replace(shipped(words), hidden_values=hidden)
        plan = build_plan(loaded, purpose=Purpose.REWARDS)
        refuse(plan.problems)
        plan = fetched_plan(loaded, plan, False, Purpose.REWARDS)
    except ConfigError as error:
        key = f"{model.section}.args.path"
        own = [replace(each, key=key, where=where) if each.key == KEY else each for each in error.problems]
        raise ConfigError(own) from None
    return ServedReward(path, loaded, plan, run_id)


def run_with_servers(command: Callable[[], int], run_id: str) -> int:
    """The exit code of a command that starts servers. Must be called before any thread is started."""
    return run_guarded(lambda: exit_code_of(command), memory_folder(run_id))
