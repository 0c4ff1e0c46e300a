"""What all commands that start processes do first: lock the run, and learn the secrets that nothing may print."""

import gc
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.config.redact import remove_secrets, written_forms
from areal_like.process.entrypoint import write_stacks_on_request
from areal_like.process.errors import Failure
from areal_like.process.exit_codes import BAD_CONFIGURATION, FAILED
from areal_like.process.identity import taken_token
from areal_like.process.scrubbed_output import SECRET_NAMES
from launcher.agent.local import LocalAgent
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.runs.env_file import secret_variables
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE, STACKS
from launcher.supervisor.lifecycle import Lifecycle, RunEnding, wait_limits
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.roster import Roster
from launcher.supervisor.run_lock import LockedRun, lock_run
from launcher.supervisor.supervisor import Supervisor
from launcher.supervisor.taken_over import taken_over_ending
from launcher.supervisor.write_errors import DISK_ERRORS, write_error_text
from launcher.terminal import write_line

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LockedStart:
    """`key`: that of `rollout.api_key_var`, or empty. `token`: that of the run's processes. `hidden`: these and other
    secrets in all forms, the longest first, as one may begin with another."""

    loaded: Loaded
    locked: LockedRun
    key: str
    token: str
    hidden: tuple[str, ...]

    def clean(self, text: str) -> str:
        """Without secrets."""
        return remove_secrets(self.loaded.redactor.everywhere(text), self.hidden)

    def watch(self, policy: RestartPolicy, say: Callable[[str], None], lifecycle: Lifecycle) -> RunEnding:
        """Starts all processes of the plan; returns when they have ended. Its own failure ends the run as well, with
        its summary, unless another launcher has the run now."""
        locked, run = self.locked, self.locked.run
        hidden = {*self.loaded.redactor.secrets, *self.hidden}
        agent = LocalAgent(run, self.token, run.config.log.file, hidden)
        supervisor = Supervisor(
            run,
            Roster(locked.plan.processes, agent),
            locked.names,
            wait_limits(run.config),
            policy,
            locked.start,
            say,
            lifecycle,
        )
        try:
            return supervisor.watch()
        except (Failure, ConfigError, OSError) as error:
            log.debug("the supervisor failed", exc_info=True)
            with suppress(OSError):
                if (lost := taken_over_ending(run, supervisor.attempt)) is not None:
                    return lost
            return RunEnding("failed", FAILED, self._text_of(error))

    def _text_of(self, error: Failure | ConfigError | OSError) -> str:
        if not isinstance(error, OSError):
            return str(error)
        if error.errno in DISK_ERRORS:
            return write_error_text(error, self.locked.run.config, self.locked.plan.run_dir)
        return f"launcher/0 failed: {type(error).__name__}: {error}; continue with resume="


def lock_start(
    loaded: Loaded,
    plan: Plan,
    run_id: str,
    replace: bool,
    purpose: Purpose = Purpose.RUN,
    check: Callable[[Any, Mapping[str, str]], None] = lambda config, variables: None,
) -> LockedStart | int:
    """The exit code where it cannot start; the reason is printed. `check` is given the configuration and the variables
    of its files."""
    gc.enable()  # which a short command does without
    LAUNCHER_PULSE.limit(loaded.config.watchdog.notice_s, loaded.config.watchdog.launcher_s)
    try:
        variables = secret_variables(loaded.config, Path.cwd())
        check(loaded.config, variables)
        referred = [name for name, value in os.environ.items() if value in loaded.redactor.secrets]
        os.environ[SECRET_NAMES] = ",".join([*variables, *referred])
        os.environ.update(variables)  # for all processes, and for name store and trackers in this one
        locked = lock_run(loaded, plan, run_id, replace, purpose)
    except ConfigError as error:
        return _refused(error.refusal_text())
    except Failure as failure:
        return _refused(str(failure), FAILED)
    except OSError as error:
        text = write_error_text(error, loaded.config, plan.run_dir)
        return _refused(text, FAILED if error.errno in DISK_ERRORS else BAD_CONFIGURATION)
    LAUNCHER_PULSE.log_in(locked.run.logs, locked.run.config.log.max_mb << 20)
    if LAUNCHER_PULSE.is_open:
        with suppress(OSError):  # a full disk: what needs it says so
            write_stacks_on_request(locked.run.logs / STACKS)
    rollout = getattr(locked.run.config, "rollout", None)
    key = "" if rollout is None else os.environ.get(rollout.api_key_var, "")
    # Other runs use servers that stand alone by that key.
    token = (key if purpose is Purpose.SERVE else "") or taken_token() or secrets.token_hex(32)
    return LockedStart(loaded, locked, key, token, written_forms((token, key, *variables.values())))


def _refused(text: str, code: int = BAD_CONFIGURATION) -> int:
    write_line(text, sys.stderr)
    return code
