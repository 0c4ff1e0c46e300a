"""A process of the plan that was started here: its log, its failure note, its end."""

import fcntl
import json
import mmap
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from areal_like.process.child_process import ChildProcess, last_lines
from areal_like.process.entrypoint import failure_note_path
from areal_like.process.identity import (
    ATTEMPT,
    INCARNATION,
    PROCESS,
    RUN_DIR,
    TOKEN,
    TOKEN_DESCRIPTOR,
    Identity,
    passed_token,
)
from areal_like.process.pulse import PAGE_BYTES, PULSE_FD
from launcher.agent.base import TAIL_LINES, FailureNote, ProcessExit
from launcher.agent.log_scrubber import LogScrubber
from launcher.plan.plan import Process

KEPT_LINES = 1000
"""More than anybody asks for."""


class ManagedProcess:
    """Its log is open until `close`."""

    def __init__(
        self,
        planned: Process,
        identity: Identity,
        run_dir: Path,
        cwd: Path,
        variables: Mapping[str, str],
        secret: str,
        hidden: Sequence[str] = (),
    ) -> None:
        """`planned` has its placeholders filled in. Its environment overrides `variables`, which override the
        launcher's; `secret` is passed beside it. What is `hidden` does not stay in its log."""
        self.identity = identity
        self._log, self._started = planned.log, time.monotonic()
        self._note_path = failure_note_path(run_dir, identity)
        self._note_path.unlink(missing_ok=True)
        self._output = _open_log(self._log)
        self.scrubber = LogScrubber(self._log, hidden)
        self._lines_before: list[str] = []
        """The last ones before its output was cut."""
        self.hung: FailureNote | None = None
        """Set before it is killed because it hangs."""
        descriptor = os.memfd_create("areal-pulse")
        os.ftruncate(descriptor, PAGE_BYTES)
        self.page = mmap.mmap(descriptor, PAGE_BYTES)
        environment = {**os.environ, **variables, **planned.env}
        environment[PULSE_FD] = str(descriptor)
        environment |= {PROCESS: identity.name, ATTEMPT: str(identity.attempt), INCARNATION: str(identity.incarnation)}
        environment.pop(TOKEN, None)
        try:
            with passed_token(secret) as token:
                self.process = ChildProcess(
                    planned.command,
                    environment | {TOKEN_DESCRIPTOR: str(token)},
                    marks={PROCESS: identity.name, RUN_DIR: str(run_dir)},
                    cwd=cwd,
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(descriptor, token),
                    dies_with_parent=True,
                    cores=planned.cores,
                )
        finally:
            os.close(descriptor)

    @property
    def log(self) -> Path | None:
        return Path(self._log) if self._log else None

    def exited(self) -> ProcessExit | None:
        """How it ended, if it has."""
        code = self.process.exit_code()
        if code is None:
            return None
        note = self.hung or (self._note() if code else None)
        return ProcessExit(
            identity=self.identity,
            code=code,
            time=note.time if note else time.time(),
            age_s=time.monotonic() - self._started,
            log=self._log,
            note=note,
            last_lines=tuple(self.last_lines(TAIL_LINES)),
            usage=self.process.usage,
        )

    def last_lines(self, count: int) -> list[str]:
        self.scrubber.scrub()
        return [*self._lines_before, *last_lines(self._output, count)][-count:]

    def cut_output(self, most: int) -> None:
        """Empties it above this size, but for its last lines: without a log nobody reads more of it."""
        if self.log is None and os.fstat(self._output.fileno()).st_size > most:
            self._lines_before = last_lines(self._output, KEPT_LINES)
            os.ftruncate(self._output.fileno(), 0)

    def close(self) -> None:
        self.scrubber.scrub()
        self._output.close()
        self.page.close()

    def _note(self) -> FailureNote | None:
        try:
            note = json.loads(self._note_path.read_text(encoding="utf-8"))
            return FailureNote(float(note["time"]), str(note["message"]), str(note["kind"]))
        except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
            return None  # it ended without a note, or while writing it


def log_name(identity: Identity) -> str:
    """One file per start; attempts are counted over the whole run, so no log is overwritten."""
    return f"{identity.start_name}.log"


def _open_log(path: str) -> IO[Any]:
    """Without a path a temporary file, so that the last lines can be shown all the same. Whoever writes to it goes on
    at its new end once it is cut, as in a log."""
    if path:
        return Path(path).open("a+b")
    file = TemporaryFile("a+b")  # noqa: SIM115
    # A temporary file does not append, whatever its mode.
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file
