"""A run without a trainer: the servers of an experiment, alone or with what uses them."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.config.redact import MIN_SECRET_LENGTH, remove_secrets
from areal_like.process.errors import Failure
from areal_like.process.exit_codes import BAD_CONFIGURATION, FAILED
from launcher.agent.local import LocalAgent
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.env_file import secret_variables
from launcher.runs.run_lock import LockedRun, lock_run
from launcher.supervisor.launch import DISK_ERRORS, wait_limits, write_error_text
from launcher.supervisor.lifecycle import Lifecycle, RunEnding
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.roster import Roster
from launcher.supervisor.supervisor import Supervisor
from launcher.terminal import write_line


@dataclass(frozen=True)
class ServingRun:
    """`hidden`: secrets that no message shows. `key`: that of `rollout.api_key_var`, or empty."""

    loaded: Loaded
    locked: LockedRun
    hidden: tuple[str, ...]
    key: str

    def say(self, text: str) -> None:
        write_line(self._shown(text), sys.stdout)

    def complain(self, text: str) -> None:
        write_line(self._shown(text), sys.stderr)

    def _shown(self, text: str) -> str:
        return escape_controls(remove_secrets(self.loaded.redactor.everywhere(text), self.hidden))

    def watch(self, secret: str, policy: RestartPolicy, lifecycle: Lifecycle) -> RunEnding:
        """Until its end. `secret`: the token of its processes."""
        locked, run = self.locked, self.locked.run
        supervisor = Supervisor(
            run,
            Roster(locked.plan.processes, LocalAgent(run, secret, run.config.log.file)),
            locked.names,
            wait_limits(run),
            policy,
            locked.start,
            self.say,
            lifecycle,
        )
        try:
            return supervisor.watch()
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            return RunEnding("failed", FAILED, write_error_text(error, run.config, locked.plan.run_dir))

    def close(self, ending: RunEnding) -> None:
        if ending.outcome != "lost":
            self.locked.names.clear()
        self.locked.names.close()


def lock_serving_run(
    loaded: Loaded,
    plan: Plan,
    run_id: str,
    replace: bool,
    purpose: Purpose,
    check: Callable[[Any, Mapping[str, str]], None] = lambda config, variables: None,
) -> ServingRun | int:
    """The exit code where it cannot be started; the reason is printed. `check` is given the configuration and the
    variables of its files."""
    try:
        variables = secret_variables(loaded.config, Path.cwd())
        check(loaded.config, variables)
        os.environ.update(variables)
        locked = lock_run(loaded, plan, run_id, replace, purpose)
    except ConfigError as error:
        write_line(error.refusal_text(), sys.stderr)
        return BAD_CONFIGURATION
    except Failure as failure:
        write_line(str(failure), sys.stderr)
        return FAILED
    except OSError as error:
        write_line(write_error_text(error, loaded.config, plan.run_dir), sys.stderr)
        return FAILED if error.errno in DISK_ERRORS else BAD_CONFIGURATION
    key = os.environ.get(locked.run.config.rollout.api_key_var, "")
    hidden = tuple(value for value in (key, *variables.values()) if len(value) >= MIN_SECRET_LENGTH)
    return ServingRun(loaded, locked, hidden, key)
