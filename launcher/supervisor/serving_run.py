"""A run without a trainer: the servers of an experiment, alone or with what uses them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.loaded import Loaded
from areal_like.process.identity import EPISODES
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.supervisor.discard import remove_run
from launcher.supervisor.lifecycle import Lifecycle, RunEnding
from launcher.supervisor.locked_start import LockedStart, lock_start
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.run_lock import LockedRun
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

    def watch_worker(self, on_poll: Callable[[], None], say: Callable[[str], None]) -> RunEnding:
        """Until the process has ended that uses the servers. It is not replaced: its rows would be tried again.
        `on_poll` is called repeatedly, and at the end."""
        policy = RestartPolicy(self.locked.run.config.recover.mode, retries=0)
        ending = self.start.watch(policy, say, Lifecycle(trains=False, vital=(EPISODES,), on_poll=on_poll))
        on_poll()
        return ending

    def leave(self, ending: RunEnding) -> None:
        """The folder of the run stays only after a failure, for its logs."""
        directory = self.locked.run.directory
        if ending.message:
            self.complain(ending.message)
        self.close(ending)
        if ending.outcome == "failed":
            self.complain(f"the logs are in {directory / 'logs'}")
        elif ending.outcome != "lost":
            remove_run(directory)

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
