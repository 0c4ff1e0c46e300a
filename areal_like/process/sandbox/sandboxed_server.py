"""A program in the sandbox that stays and answers lines, where its start takes longer than an answer."""

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from selectors import EVENT_READ, DefaultSelector

from areal_like.process.sandbox.base import End, SandboxError, SandboxResult
from areal_like.process.sandbox.program import CHUNK
from areal_like.process.sandbox.sandbox import Sandbox

READY_TIMEOUT_S = 300.0
"""Importing large packages takes minutes on a machine under load."""
MAX_LINE = 1 << 16
"""Bytes of an answer."""


class ServerEnded(Exception):
    """It ended, or exceeded a limit, instead of an answer."""

    def __init__(self, result: SandboxResult) -> None:
        super().__init__(f"ended by {result.end} with exit code {result.exit_code}")
        self.result = result


class SandboxedServer:
    """The program gets the number of a descriptor as last argument. It writes a line there once it is ready, and one
    for each that it reads; each may take `wall_s` of the limits."""

    def __init__(self, sandbox: Sandbox, command: Sequence[str], files: Mapping[str, str]) -> None:
        """Raises SandboxError if it is not ready in time."""
        with ExitStack() as stack:
            self._wire, theirs = socket.socketpair()
            stack.callback(self._wire.close)
            with theirs:
                number = theirs.fileno()
                self._program = sandbox.start([*command, str(number)], files=files, pass_fds=(number,))
            stack.callback(self._program.close)
            try:
                self._read(time.monotonic() + READY_TIMEOUT_S)
            except ServerEnded as ended:
                reason = ended.result.stderr.decode("utf-8", "replace").strip()[-1000:]
                raise SandboxError(f"a program in the sandbox was never ready: it {ended}: {reason}") from ended
            self._close = stack.pop_all().close

    def ask(self, line: bytes) -> bytes:
        """The line that it answers. Raises ServerEnded; then it must be closed."""
        self._program.start_clock()
        with suppress(OSError):  # it has ended, which is noticed below
            self._wire.sendall(line + b"\n")
        return self._read(None)

    def close(self) -> None:
        self._close()

    def _read(self, patient_until: float | None) -> bytes:
        """Up to this time its limit does not run."""
        buffer, program = bytearray(), self._program
        with DefaultSelector() as selector:
            selector.register(self._wire, EVENT_READ)
            program.watch(selector)
            while True:
                for key, _ in selector.select(program.pause_s):
                    if key.data is not None:
                        if not key.data.read(key.fd):
                            selector.unregister(key.fd)
                    elif data := self._received():
                        buffer += data
                    else:
                        selector.unregister(self._wire)
                line, end, _ = buffer.partition(b"\n")
                if end:
                    return bytes(line)
                if len(buffer) > MAX_LINE:
                    program.stop(End.OUTPUT)
                if patient_until is not None and program.has_begun:
                    if time.monotonic() > patient_until:
                        raise SandboxError(f"a program in the sandbox was not ready within {READY_TIMEOUT_S:g} s")
                    program.start_clock()
                program.check()
                if program.end is not None:
                    raise ServerEnded(program.result())

    def _received(self) -> bytes:
        try:
            return self._wire.recv(CHUNK)
        except ConnectionError:
            return b""
