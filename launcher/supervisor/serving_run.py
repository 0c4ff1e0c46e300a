"""A run without a trainer: the servers of an experiment, alone or with what uses them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.loaded import Loaded
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.run_lock import LockedRun
from launcher.supervisor.lifecycle import Lifecycle, RunEnding
from launcher.supervisor.locked_start import LockedStart, lock_start
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.terminal import write_line


@dataclass(frozen=True)
class ServingRun:
    """Its messages show no secrets."""

    start: LockedStart

    @property
    def locked(self) -> LockedRun:
        return self.start.locked

    @property
    def key(self) -> str:
        return self.start.key

    def say(self, text: str) -> None:
        write_line(self._shown(text), sys.stdout)

    def complain(self, text: str) -> None:
        write_line(self._shown(text), sys.stderr)

    def _shown(self, text: str) -> str:
        return escape_controls(self.start.clean(text))

    def watch(self, policy: RestartPolicy, lifecycle: Lifecycle) -> RunEnding:
        """Until its end."""
        return self.start.watch(policy, self.say, lifecycle)

    def close(self, ending: RunEnding) -> None:
        self.locked.release(clears=ending.outcome != "lost")


def lock_serving_run(
    loaded: Loaded,
    plan: Plan,
    run_id: str,
    replace: bool,
    purpose: Purpose,
    check: Callable[[Any, Mapping[str, str]], None] = lambda config, variables: None,
) -> ServingRun | int:
    """As `lock_start`."""
    start = lock_start(loaded, plan, run_id, replace, purpose, check)
    return start if isinstance(start, int) else ServingRun(start)
