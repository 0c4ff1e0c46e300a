"""A child with a reward in it, as the worker sees it: started, spoken to, and killed with all that it started."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import orjson

from areal_like.config.sections.data import REWARD_MODEL
from areal_like.process.identity import TOKEN
from areal_like.process.spawn import spawn
from areal_like.rollout.episodes.rewards import RewardSpec

KILL_TIMEOUT_S, POLL_INTERVAL_S = 5.0, 0.005

Listener = Callable[[dict[str, Any]], None]


class RewardProcess(asyncio.Protocol):
    """`on_message` hears every line, `on_end` that there will be no more."""

    def __init__(self, wanted: RewardSpec, timeout_s: float) -> None:
        """Starts it; it imports the reward beside whatever comes next here."""
        ours, theirs = socket.socketpair()
        ours.sendall(orjson.dumps({"wanted": wanted._asdict(), "timeout_s": timeout_s}) + b"\n")
        with theirs:
            descriptor = theirs.fileno()
            needs_token = wanted.name == REWARD_MODEL  # our own code, and nothing else is in that process
            command = [sys.executable, "-m", "areal_like.rollout.episodes.rewards.reward_worker"]
            self._popen = spawn(
                [*command, str(descriptor), str(os.getpid())],
                {name: value for name, value in os.environ.items() if name != TOKEN or needs_token},
                stdout=2,  # what a reward prints belongs into the log
                pass_fds=(descriptor,),
            )
        self._socket = ours
        self._transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._on_message: Listener = lambda message: None
        self._on_end: Callable[[], None] = lambda: None

    async def listen(self, on_message: Listener, on_end: Callable[[], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_message(orjson.loads(line))

    def connection_lost(self, fault: Exception | None) -> None:
        self._on_end()

    def send(self, lines: bytes) -> None:
        assert self._transport is not None, "listen() comes first"
        self._transport.write(lines)

    def how_it_ended(self) -> str | None:
        """In words; None while it runs. It is not reaped here, so that its number stays that of its group."""
        if self._popen.returncode is not None:
            return _words(self._popen.returncode)
        status = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return _words(status.si_status if status.si_code == os.CLD_EXITED else -status.si_status)

    def kill(self) -> None:
        """-9 to all that it started and that is still in its group; nothing of it is heard from then on."""
        self._on_message, self._on_end = lambda message: None, lambda: None
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        if self._transport is None:
            self._socket.close()
        else:
            self._transport.abort()

    async def end(self, grace_s: float = 0.0) -> str:
        """Kills it, after giving it so many seconds to end by itself; says how it ended."""
        words = await self._wait(grace_s)
        self.kill()
        words = words or await self._wait(KILL_TIMEOUT_S) or "it cannot be killed"
        self._popen.poll()
        return words

    async def _wait(self, limit_s: float) -> str | None:
        until = time.monotonic() + limit_s
        while (words := self.how_it_ended()) is None and time.monotonic() < until:
            await asyncio.sleep(POLL_INTERVAL_S)
        return words


def _words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
