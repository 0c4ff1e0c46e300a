"""Serves one environment over a socket, in JSON lines: `load`, then `rows`, `limit`, `play` and `cancel`."""

import asyncio
import importlib
import importlib.util
import json
import os
import resource
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Protocol

from .fault_text import describe

MAX_LINE = 1 << 30


class HostedEnvironment(Protocol):
    """An environment of one generation of verifiers."""

    def rows(self, held_out: bool) -> Iterator[dict[str, Any]]:
        """Rows with `prompt`, and all that an episode needs."""
        ...

    async def play(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The episodes of a group, `at_once` at a time: `reward` and `metrics`, or why there is none in `error`. An
        episode whose agents have traces of their own has these in `runs`."""
        ...

    async def close(self) -> None:
        """When its process ends."""
        ...


def main(descriptor: int) -> None:
    os.dup2(2, 1)  # what an environment prints goes to the log
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(wire: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=wire, limit=MAX_LINE)
    service = EnvironmentService(writer)
    try:
        while line := await reader.readline():
            await service.take(json.loads(line))
    finally:
        await service.close()


class EnvironmentService:
    """Answers requests; episodes run at the same time."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._environment: HostedEnvironment | None = None
        self._playing: dict[int, asyncio.Task[None]] = {}

    async def take(self, request: dict[str, Any]) -> None:
        match request["do"]:
            case "load":
                await self._load(request)
            case "rows":
                await self._rows(request["held_out"])
            case "limit":
                resource.setrlimit(resource.RLIMIT_DATA, (request["bytes"], request["bytes"]))
            case "play":
                number = request["number"]
                self._playing[number] = asyncio.create_task(self._play(number, request))
            case "cancel":
                if (task := self._playing.get(request["number"])) is not None:
                    task.cancel()

    async def close(self) -> None:
        for task in self._playing.values():
            task.cancel()
        await asyncio.gather(*self._playing.values(), return_exceptions=True)
        if self._environment is not None:
            await self._environment.close()

    async def _load(self, request: dict[str, Any]) -> None:
        sys.path += [folder for folder in request["folders"] if folder not in sys.path]
        try:
            self._environment = load(request["module"], request["id"], request["args"])
        except BaseException as fault:
            self._send({"problem": describe(fault), "trace": traceback.format_exc()})
            if not isinstance(fault, Exception):
                raise
        else:
            self._send({"loaded": type(self._environment).__name__})

    async def _rows(self, held_out: bool) -> None:
        assert self._environment is not None, "it is loaded before it is asked"
        number = 0
        try:
            for row in self._environment.rows(held_out):
                self._write(json.dumps({"row": row}, ensure_ascii=False, allow_nan=False).encode())
                number += 1
                await self._writer.drain()
        except Exception as fault:
            self._send({"problem": f"row {number}: {describe(fault)}", "trace": traceback.format_exc()})
        else:
            self._send({"rows": number})

    async def _play(self, number: int, request: dict[str, Any]) -> None:
        assert self._environment is not None, "it is loaded before it is asked"
        try:
            answer = _encoded({"played": number, "results": await self._environment.play(request)})
        except asyncio.CancelledError:
            answer = _encoded({"played": number, "problem": "it was cancelled"})
        except Exception as fault:
            traceback.print_exc()
            answer = _encoded({"played": number, "problem": describe(fault)})
        del self._playing[number]
        self._write(answer)

    def _send(self, message: dict[str, Any]) -> None:
        self._write(_encoded(message))

    def _write(self, line: bytes) -> None:
        self._writer.write(line + b"\n")


def _encoded(message: dict[str, Any]) -> bytes:
    """As Python's json reads it: a reward may be NaN. Half of a surrogate pair becomes a question mark."""
    return json.dumps(message, ensure_ascii=False).encode(errors="replace")


def load(module: str, name: str, args: dict[str, Any]) -> HostedEnvironment:
    """By what the module has, as both generations of verifiers may be installed."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "load_environment"):
        from .classic import ClassicEnvironment

        return ClassicEnvironment(loaded, args)
    from .taskset import TasksetEnvironment, is_taskset

    if is_taskset(loaded):
        return TasksetEnvironment(name, args)
    place = loaded.__file__ or module
    raise ValueError(f"{place} has neither load_environment nor a Taskset of verifiers 0.4 in its __all__")
