"""A program that runs in the sandbox: what it prints, what it uses of the machine, and its end."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import orjson

from areal_like.process.child_process import ChildProcess
from areal_like.process.process_tree import KILL_TIMEOUT_S
from areal_like.process.sandbox.base import Cell, End, SandboxError, SandboxLimits, SandboxResult
from areal_like.process.sandbox.confine import STARTED
from areal_like.process.sandbox.starvation import ProcessorUse, processor_use, starved_s
from areal_like.process.tree_usage import memory_bytes, pids_below

START_TIMEOUT_S = 60.0
"""Until the program runs; a machine under load takes seconds."""
CHECK_INTERVAL_S, END_INTERVAL_S = 0.1, 0.005
CHUNK = 1 << 16
OWN_PROCESSES = 2
"""Those of the sandbox itself."""


class SandboxedProgram:
    """Started by `Sandbox.start`. `close` ends it and removes all that it left."""

    def __init__(
        self, cell: Cell, limits: SandboxLimits, orders: dict[str, Any], stdin: bytes, pass_fds: Sequence[int]
    ) -> None:
        self._cell, self._limits = cell, limits
        self.end: End | None = None
        self._status, self._stdout, self._stderr = bytearray(), bytearray(), bytearray()
        self._began = self._checked_at = time.monotonic()
        self._started_at: float | None = None
        self._ended_at, self._is_ending = 0.0, False
        self._use: ProcessorUse | None = None
        self._starved_s = 0.0
        with ExitStack() as stack:
            stack.callback(cell.close)
            readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
            for reader in readers:
                os.set_blocking(reader, False)
                stack.callback(os.close, reader)
            status, stdout, stderr = writers
            content = orders | cell.orders | {"limits": asdict(limits), "status": status}
            with ExitStack() as theirs:
                for writer in writers:
                    theirs.callback(os.close, writer)
                order, given = (_file(data, theirs) for data in (orjson.dumps(content), stdin))
                self._process = ChildProcess(
                    [*cell.command, str(order)],
                    cell.env,
                    stdin=given,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(order, status, *pass_fds),
                )
            self._open = dict(zip(readers, (self._status, self._stdout, self._stderr), strict=True))
            stack.callback(self._kill)
            self._close = stack.pop_all().close

    def close(self) -> None:
        self._close()

    def stop(self, end: End) -> None:
        if self.end is None:
            if end is End.TIME:
                self._count_starvation()
            self._ended_at = time.monotonic()
            self.end = end
            self._kill()
            self._read_rest()

    def watch(self, selector: DefaultSelector) -> None:
        for descriptor in self._open:
            selector.register(descriptor, EVENT_READ, self)

    def read(self, descriptor: int) -> bool:
        """Whether there may be more. What exceeds the limit is read as well, and the program ended."""
        buffer = self._open[descriptor]
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return True
        room = int(self._limits.output_kb * 1024) - len(buffer)
        buffer += data[: max(0, room)]
        if buffer is self._status and self._started_at is None and buffer.startswith(STARTED):
            self._started_at = time.monotonic()
        if len(data) > room:
            self.stop(End.OUTPUT)
        self._is_ending |= buffer is self._stdout and not data
        return bool(data)

    def check(self) -> None:
        """Ends it if it exceeds a limit; notices its end."""
        if self.end is not None:
            return
        now = time.monotonic()
        if self._process.exit_code() is not None:
            self._ended_at = now
            self._read_rest()
            self.end = self.end or (End.CPU if self._exit_code() == -signal.SIGXCPU else End.EXIT)
        elif self._started_at is None:
            if now > self._began + START_TIMEOUT_S:
                raise SandboxError(f"a program has not started in the sandbox within {START_TIMEOUT_S:g} s")
        elif now > self._started_at + self._limits.wall_s:
            self.stop(End.TIME)
        elif now > self._checked_at + CHECK_INTERVAL_S:
            self._checked_at = now
            self._check_use()

    @property
    def has_begun(self) -> bool:
        """It runs, or will never."""
        return self._started_at is not None or self.end is not None

    def start_clock(self) -> None:
        """Its time runs from now on."""
        self._started_at = time.monotonic()
        self._use, self._starved_s = None, 0.0

    @property
    def starved_s(self) -> float:
        return self._starved_s

    @property
    def pause_s(self) -> float:
        """Until the next check. A program whose output has ended is about to end."""
        if self.end is not None or self._started_at is None:
            return CHECK_INTERVAL_S
        left_s = self._started_at + self._limits.wall_s - time.monotonic()
        return max(0.0, min(END_INTERVAL_S if self._is_ending else CHECK_INTERVAL_S, left_s))

    def result(self) -> SandboxResult:
        """Once it has ended. Raises SandboxError if it never ran."""
        assert self.end is not None, "it runs"
        if not self._status.startswith(STARTED) or len(self._status) > len(STARTED):
            reason = bytes(self._status.removeprefix(STARTED) or self._stderr).decode("utf-8", "replace").strip()
            raise SandboxError(f"no program can run in the sandbox: {reason[-1000:]}")
        wall_s = self._ended_at - (self._started_at or self._ended_at)
        printed = bytes(self._stdout), bytes(self._stderr)
        return SandboxResult(self.end, self._exit_code(), *printed, wall_s, self._starved_s)

    def _exit_code(self) -> int:
        code = self._process.exit_code()
        if code is None:
            return -signal.SIGKILL
        return 128 - code if code > 128 else code  # bubblewrap reports a signal as a shell does

    def _check_use(self) -> None:
        pids = self._count_starvation()
        if len(pids) > self._limits.processes + OWN_PROCESSES:
            self.stop(End.PROCESSES)
        elif sum(map(memory_bytes, pids)) > self._limits.memory_gb * 2**30:
            self.stop(End.MEMORY)

    def _count_starvation(self) -> list[int]:
        """Since it was last counted. Returns the ids of the program's processes."""
        pids = pids_below(self._process.pid)
        before, self._use = self._use, processor_use(pids, time.monotonic(), self._use)
        if before is not None:
            self._starved_s += starved_s(before, self._use)
        return pids

    def _read_rest(self) -> None:
        """What the pipes still hold."""
        for descriptor, buffer in self._open.items():
            while len(buffer) < self._limits.output_kb * 1024:
                try:
                    data = os.read(descriptor, CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    break
                buffer += data[: int(self._limits.output_kb * 1024) - len(buffer)]

    def _kill(self) -> None:
        if self._process.exit_code() is None:
            self._cell.kill(self._process.pid)
            if self._process.wait(KILL_TIMEOUT_S) is None:
                self._process.kill()


def wait_for(first: SandboxedProgram, *others: SandboxedProgram) -> SandboxResult:
    """Until the first has ended; the others, for which it waits, are stopped then. Its time runs once all have started,
    and it is starved where they are."""
    programs = (first, *others)
    with DefaultSelector() as selector:
        for program in programs:
            program.watch(selector)
        all_run = False
        while first.end is None or not all_run:
            for key, _ in selector.select(min(program.pause_s for program in programs)):
                if not key.data.read(key.fd):
                    selector.unregister(key.fd)
            for program in programs:
                program.check()
            if not all_run and all(program.has_begun for program in programs):
                all_run = True
                if first.end is None:
                    first.start_clock()
    for program in others:
        if program.end is End.EXIT:
            program.result()  # raises if it never ran
        program.stop(End.STOPPED)
    result = first.result()
    return result._replace(starved_s=sum(program.starved_s for program in programs))


def _file(content: bytes, stack: ExitStack) -> int:
    """A file in memory that can only be read."""
    writable = os.memfd_create("sandbox")
    try:
        with open(writable, "wb", closefd=False) as stream:
            stream.write(content)
        readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)
    stack.callback(os.close, readable)
    return readable
