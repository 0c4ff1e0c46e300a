"""A process that this one starts, such as a role or an engine: its end, its use of the machine, what it leaves."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from areal_like.process.process_tree import (
    KILL_TIMEOUT_S,
    ORPHANS_TIMEOUT_S,
    PAUSE_S,
    die_with_parent,
    kill_orphans,
    reap_orphans,
)

TAIL_BYTES = 16384

Stream = int | IO[Any] | None

IGNORED = (signal.signal, signal.SIGUSR1, signal.SIG_IGN)
"""Slurm's warning goes to all processes of a job: the launcher stops those of its run in their order."""

_running: set[int] = set()
"""Process ids of all that are not reaped."""


class ProcessUsage(NamedTuple):
    """Of a process that has ended, and of those for which it waited. `memory_bytes`: the most that one of them held."""

    cpu_s: float
    memory_bytes: int

    @property
    def text(self) -> str:
        size = self.memory_bytes / 2**20
        memory = f"{size:.0f} MiB" if size < 1024 else f"{size / 1024:.1f} GiB"
        return f"up to {memory} of memory and {self.cpu_s:.0f} s of CPU time"


class ChildProcess:
    """In a new session. Where this process is a subreaper, `kill` also ends what the child has started, in other
    sessions too. `marks`: variables in the child's environment by which that is recognized."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        marks: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
        dies_with_parent: bool = False,
        cores: Collection[int] = (),
    ) -> None:
        """`dies_with_parent`: it gets SIGKILL when the calling thread ends. Such a child can be limited to `cores`, as
        far as this process may use them; empty: no limit."""
        assert dies_with_parent or not cores
        self._marks, self._usage = marks, ProcessUsage(0.0, 0)
        self._popen: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=_child_setup(os.getpid(), cores) if dies_with_parent else None,
        )
        _running.add(self.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._popen.stdin is not None, "it was started with a pipe"
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._popen.stdout is not None, "it was started with a pipe"
        return self._popen.stdout

    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs."""
        if self._popen.returncode is None:
            try:
                pid, status, used = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:  # kill_descendants has reaped it
                self._popen.returncode = -signal.SIGKILL
                _running.discard(self.pid)
                return self._popen.returncode
            if pid:
                self._popen.returncode = os.waitstatus_to_exitcode(status)
                self._usage = ProcessUsage(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
                _running.discard(pid)
        return self._popen.returncode

    def wait(self, limit_s: float) -> int | None:
        """Waits for its end; None if it still runs after `limit_s` seconds."""
        until = time.monotonic() + limit_s
        while (code := self.exit_code()) is None and time.monotonic() < until:
            time.sleep(PAUSE_S)
        return code

    def signal(self, number: int) -> None:
        if self.exit_code() is None:
            os.kill(self.pid, number)

    @property
    def usage(self) -> ProcessUsage:
        """Once it has ended."""
        return self._usage

    def kill(self) -> None:
        """Kills it with everything that it has started, as `kill_all`."""
        kill_all([self])

    def kill_orphans(self, limit_s: float) -> None:
        """What it has left."""
        if self._marks is not None:
            kill_orphans(self.pid, self._marks, _running, limit_s)


def kill_all(processes: Collection[ChildProcess]) -> None:
    """Kills them with everything that they have started. Those that hang in the kernel are left behind after
    KILL_TIMEOUT_S, and what they have started after ORPHANS_TIMEOUT_S, however many there are: for so long the caller
    is blocked."""
    for process in processes:
        if process.exit_code() is None:
            os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + KILL_TIMEOUT_S
    for process in processes:
        process.wait(until - time.monotonic())
    until = time.monotonic() + ORPHANS_TIMEOUT_S
    for process in processes:
        process.kill_orphans(until - time.monotonic())


def _child_setup(parent: int, cores: Collection[int]) -> Callable[[], None]:
    """Runs between fork and exec, where other threads may hold locks: system calls only, looked up before."""
    allowed = set(cores) & os.sched_getaffinity(0)
    set_handler, warning, ignore = IGNORED

    def setup() -> None:
        set_handler(warning, ignore)
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        if allowed:
            os.sched_setaffinity(0, allowed)

    return setup


def reap_leftovers() -> None:
    """Reaps ended orphans of children."""
    reap_orphans(_running)


def last_lines(log: IO[Any], count: int) -> list[str]:
    """The last lines of a log that is open for reading, without empty ones."""
    end = os.fstat(log.fileno()).st_size
    content = os.pread(log.fileno(), TAIL_BYTES, max(0, end - TAIL_BYTES))
    text = content.decode("utf-8", "replace")
    lines = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").splitlines()]
    return [line for line in lines if line][-count:]
