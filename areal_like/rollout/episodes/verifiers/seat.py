"""EnvironmentSeat: a loaded process of an environment, and the groups that it plays."""

import asyncio
import json
from typing import Any

from areal_like.data.exact_json import dump_json
from areal_like.data.verifiers.environment_process import PackageProcess
from areal_like.process.errors import InfrastructureError
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault

CANCEL_LIMIT_S = 10.0
"""A group that was cancelled ends within this time, or its process is killed."""
MAX_LINE = 1 << 30


class EnvironmentEnded(EnvironmentFault, InfrastructureError):
    """Its process has ended, which may be no fault of what it played."""


class EnvironmentSeat:
    """The process answers in JSON lines, in any order. When it ends, so do the groups that it plays."""

    def __init__(self, process: PackageProcess, max_bytes: int | None) -> None:
        self.has_ended = False
        self._process, self._max_bytes = process, max_bytes
        self._waiting: dict[int, asyncio.Future[list[dict[str, Any]]]] = {}
        self._num_requests = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._process.wire.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=self._process.wire, limit=MAX_LINE)
        self._reading = asyncio.create_task(self._read(reader))
        if self._max_bytes is not None:
            self._send({"do": "limit", "bytes": self._max_bytes})

    @property
    def num_playing(self) -> int:
        return len(self._waiting)

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The episodes of a group. Raises EnvironmentFault, and where its process ends EnvironmentEnded. One that is
        cancelled is cancelled there too."""
        if self.has_ended:
            raise self._ended("its process has ended")
        number, self._num_requests = self._num_requests, self._num_requests + 1
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"do": "play", "number": number, **request})
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                self._send({"do": "cancel", "number": number})
                asyncio.get_running_loop().call_later(CANCEL_LIMIT_S, self._kill_unless, future)
            raise

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._end("it was closed")
        if self._writer is not None:
            self._writer.close()
        await asyncio.to_thread(self._process.close)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        how = ""
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                self._settle(json.loads(line))
        except ConnectionError:
            pass
        except ValueError as fault:  # also of a line that is too long
            self._process.kill()
            how = f"its process was killed, as it sent what cannot be read ({fault})"
        self.has_ended = True
        self._end(how or f"its process ended with {await asyncio.to_thread(lambda: self._process.ending)}")

    def _settle(self, message: dict[str, Any]) -> None:
        future = self._waiting.pop(message["played"], None)
        if future is None or future.done():
            return
        if "problem" in message:
            future.set_exception(EnvironmentFault(f"environment {self._process.package.name}: {message['problem']}"))
        else:
            future.set_result(message["results"])

    def _end(self, how: str) -> None:
        self.has_ended = True
        fault = self._ended(how)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(fault)
        self._waiting.clear()

    def _ended(self, how: str) -> EnvironmentEnded:
        return EnvironmentEnded(f"environment {self._process.package.name}: {how}; its log says more")

    def _kill_unless(self, future: "asyncio.Future[Any]") -> None:
        """The environment hangs: it holds the thread that would cancel the group."""
        if not future.done():
            self._process.kill()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._writer is not None, "it is open"
        if not self._writer.is_closing():
            self._writer.write(dump_json(request) + b"\n")
