"""A process that the launcher started: its log, its failure note, its end."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from areal_like.process.entrypoint import failure_note_path
from areal_like.process.identity import ATTEMPT, INCARNATION, PROCESS, Identity
from areal_like.process.process_tree import KILL_TIMEOUT_S, PAUSE_S
from areal_like.process.spawn import spawn
from launcher.plan.plan import Process

TAIL_BYTES, TAIL_LINES = 16384, 12


class FailureNote(NamedTuple):
    """The failure note that a process wrote before it ended."""

    time: float
    message: str
    kind: str


class ProcessExit(NamedTuple):
    """How a process ended. `code` is negative for a signal, as subprocess has it."""

    child: "ManagedProcess"
    code: int
    time: float
    note: FailureNote | None
    last_lines: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.child.identity.name

    @property
    def how(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"killed by signal {-self.code} ({signal.Signals(-self.code).name})"


class ManagedProcess:
    """A process that was started, and its log."""

    def __init__(
        self, process: Process, identity: Identity, run_dir: Path, cwd: Path, variables: Mapping[str, str]
    ) -> None:
        """`process` has its placeholders filled in. Its environment overrides `variables`, which override the
        launcher's."""
        self.process, self.identity = process, identity
        self.log: Path | None = Path(process.log) if process.log else None
        self.note_path = failure_note_path(run_dir, identity)
        self.note_path.unlink(missing_ok=True)
        self.started = time.monotonic()
        self.ready_after: float | None = None
        self._output = _open_log(self.log)
        environment = {**os.environ, **variables, **process.env}
        environment |= {PROCESS: identity.name, ATTEMPT: str(identity.attempt), INCARNATION: str(identity.incarnation)}
        self._popen = spawn(
            process.command,
            environment,
            cwd=cwd,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            dies_with_parent=True,
            cores=process.cores,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    def exited(self) -> ProcessExit | None:
        """How it ended, if it has."""
        code = self._popen.poll()
        if code is None:
            return None
        note = self._note() if code else None
        return ProcessExit(self, code, note.time if note else time.time(), note, tuple(self.last_lines(TAIL_LINES)))

    def send(self, sign: int) -> None:
        self._popen.send_signal(sign)

    def kill(self) -> None:
        """Kills its process group and waits until it has ended. A process that hangs in the kernel is left behind: its
        successor is a later incarnation, which the others prefer, and the guardian reports it."""
        if self._popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            until = time.monotonic() + KILL_TIMEOUT_S
            while self._popen.poll() is None and time.monotonic() < until:
                time.sleep(PAUSE_S)

    def last_lines(self, count: int) -> list[str]:
        """The last lines of its log, without empty ones."""
        end = os.fstat(self._output.fileno()).st_size
        content = os.pread(self._output.fileno(), TAIL_BYTES, max(0, end - TAIL_BYTES))
        text = content.decode("utf-8", "replace")
        lines = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").splitlines()]
        return [line for line in lines if line][-count:]

    def close(self) -> None:
        self._output.close()

    def _note(self) -> FailureNote | None:
        try:
            note = json.loads(self.note_path.read_text(encoding="utf-8"))
            return FailureNote(float(note["time"]), str(note["message"]), str(note["kind"]))
        except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
            return None  # it ended without a note, or while writing it


def log_name(identity: Identity) -> str:
    """One file per start; attempts are counted over the whole run, so no log is overwritten."""
    return f"{identity.start_name}.log"


def _open_log(path: Path | None) -> IO[Any]:
    """Without a path a temporary file, so that the last lines can be shown all the same."""
    return path.open("a+b") if path is not None else TemporaryFile("a+b")
