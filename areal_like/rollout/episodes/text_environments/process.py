"""A process with one instance of a text environment: it is started, called with a limit, and ended."""

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from areal_like.data.exact_json import dump_json, parse_json
from areal_like.process.identity import shown_variables
from areal_like.process.keeper import kept_command
from areal_like.process.process_tree import KILL_TIMEOUT_S
from areal_like.process.scrubbed_output import ScrubbedBytes
from areal_like.rollout.episodes.text_environments import program

MAX_REPLY_BYTES = 1 << 24
TAIL_BYTES, SHOWN_LINES = 8192, 6
LOGGED_BYTES = 256 * 1024
"""Of what one process prints."""
STARTS, FAILURES, TIMEOUTS = "environment_starts", "environment_failures", "environment_timeouts"

log = logging.getLogger(__name__)


class EnvironmentFault(Exception):
    """An environment raised, ended or hung: an error of the episode, whose reward is then unknown."""


class InstanceSpec(NamedTuple):
    """What a process opens, and its limits. `args` is JSON, so that equal ones share a pool."""

    name: str
    args: bytes
    python: str | None
    start_timeout_s: float
    call_timeout_s: float
    max_processes: int


class EnvironmentProcess:
    """Its keeper ends everything that it starts. After a fault it is ended: nobody knows its state."""

    def __init__(self, spec: InstanceSpec, process: Process, counts: Counter[str]) -> None:
        self._spec, self._process, self._counts = spec, process, counts
        self._tail = b""
        self._is_calling = False
        self._printing = asyncio.create_task(self._pass_on())

    @classmethod
    async def start(cls, spec: InstanceSpec, cwd: Path | None, counts: Counter[str]) -> "EnvironmentProcess":
        counts[STARTS] += 1
        process = await asyncio.create_subprocess_exec(
            *kept_command([spec.python or sys.executable, program.__file__], 0.0),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=MAX_REPLY_BYTES,
            env=shown_variables(spec.args),
            cwd=cwd,
            start_new_session=True,
        )
        return cls(spec, process, counts)

    @property
    def is_usable(self) -> bool:
        return not self._is_calling and self._process.returncode is None

    async def open(self, folders: tuple[Path, ...], level: str, max_bytes: int | None) -> None:
        """`folders` are searched for the user's own; `level` is that of its log; `max_bytes` limits its memory."""
        request = {"args": parse_json(self._spec.args), "folders": [str(each) for each in folders]}
        request |= {"level": level, "max_bytes": max_bytes}
        await self._call({program.OPEN: self._spec.name, **request}, self._spec.start_timeout_s, "start_timeout_s")

    async def reset(self, seed: int) -> dict[str, Any]:
        return await self._call({program.RESET: seed}, self._spec.call_timeout_s, "call_timeout_s")

    async def step(self, action: str) -> dict[str, Any]:
        return await self._call({program.STEP: action}, self._spec.call_timeout_s, "call_timeout_s")

    def end(self) -> None:
        """Its keeper kills it with what it has started."""
        self._is_calling = True
        if self._process.returncode is None:
            for number in (signal.SIGTERM, signal.SIGCONT):  # the environment may have stopped its keeper
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(number)

    async def ended(self) -> None:
        """Once it is gone; it is killed if it does not end."""
        gone = asyncio.gather(self._process.wait(), self._printing)
        if not (await asyncio.wait([gone], timeout=KILL_TIMEOUT_S))[0]:
            log.warning("%s: process %d does not end and is killed", self._spec.name, self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.wait([gone], timeout=KILL_TIMEOUT_S)

    async def _call(self, request: dict[str, Any], limit_s: float, key: str) -> dict[str, Any]:
        """It stays in the call after a fault or a cancellation: the next answer would be of another request."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._is_calling = True
        try:
            async with asyncio.timeout(limit_s):
                with contextlib.suppress(ConnectionError):  # how it ended is read below
                    self._process.stdin.write(dump_json(request) + b"\n")
                    await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._counts[TIMEOUTS] += 1
            kind = next(iter(request))
            raise self._fault(f"{kind} took longer than {limit_s:g} s (workflow.args.{key})") from None
        except ValueError:
            raise self._fault(f"an observation is larger than {MAX_REPLY_BYTES >> 20} MiB") from None
        if not line.endswith(b"\n"):
            await self.ended()
            code = self._process.returncode or 0
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            raise self._fault(f"its process ended with {how}: {self._last_lines() or 'it printed nothing'}")
        try:
            reply: dict[str, Any] = orjson.loads(line)
        except orjson.JSONDecodeError as misfit:
            raise self._fault(f"its process sent what cannot be read ({misfit})") from None
        if "error" in reply:
            raise self._fault(reply["error"])
        self._is_calling = False
        return reply

    def _fault(self, reason: str) -> EnvironmentFault:
        self._counts[FAILURES] += 1
        return EnvironmentFault(f"{self._spec.name}: {reason}")

    async def _pass_on(self) -> None:
        """What it prints goes to the log without secrets, up to a limit."""
        left = LOGGED_BYTES
        async for part in self._printed():
            self._tail = (self._tail + part)[-TAIL_BYTES:]
            if left > 0:
                sys.stderr.write(part[:left].decode("utf-8", "replace"))
                sys.stderr.flush()
                left -= len(part)
                if left <= 0:
                    sys.stderr.write(f"\n[{self._spec.name} prints too much; the rest is dropped]\n")

    async def _printed(self) -> AsyncIterator[bytes]:
        assert self._process.stderr is not None
        scrubber = ScrubbedBytes()
        while part := await self._process.stderr.read(TAIL_BYTES):
            yield scrubber.read(part)
        yield scrubber.rest()

    def _last_lines(self) -> str:
        lines = [line.strip() for line in self._tail.decode("utf-8", "replace").splitlines() if line.strip()]
        return " | ".join(lines[-SHOWN_LINES:])
