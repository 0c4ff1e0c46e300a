"""Handle of a reward's process: starts it, exchanges messages, and ends it with everything it started."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import orjson

from areal_like.discovery.etcd_client import PASSWORD
from areal_like.process.child_process import ChildProcess
from areal_like.process.identity import TOKEN
from areal_like.process.sandbox.sandbox import SANDBOX
from areal_like.rollout.episodes.rewards import RewardSpec

SECRETS = (TOKEN, PASSWORD)
"""Variables that rewards do not see: they may run text of the model."""
KILL_TIMEOUT_S, POLL_INTERVAL_S = 5.0, 0.005
"""A process that hangs in the kernel for longer is left behind; the launcher kills it at the end."""

Listener = Callable[[dict[str, Any]], None]


class RewardProcess(asyncio.Protocol):
    """`on_message` is called with every message, `on_end` when the process has ended."""

    def __init__(self, spec: RewardSpec, timeout_s: float) -> None:
        """Starts the process, which imports the reward in the background."""
        ours, theirs = socket.socketpair()
        secrets = {name: os.environ[name] for name in SECRETS if name in os.environ and spec.queries_model}
        request = {"reward": spec._asdict(), "timeout_s": timeout_s, "secrets": secrets}
        ours.sendall(orjson.dumps(request) + b"\n")
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-m", "areal_like.rollout.episodes.rewards.reward_worker"]
            self._keeper = ChildProcess(
                [*command, str(descriptor), str(os.getpid())],
                {name: value for name, value in os.environ.items() if name not in SECRETS} | {SANDBOX: spec.sandbox},
                stdout=2,  # what a reward prints goes to the log
                pass_fds=(descriptor,),
            )
        self._socket = ours
        self._transport: asyncio.WriteTransport | None = None
        self._partial_line = b""
        self._on_message: Listener = lambda message: None
        self._on_end: Callable[[], None] = lambda: None

    async def listen(self, on_message: Listener, on_end: Callable[[], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._socket)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._on_message(orjson.loads(line))

    def connection_lost(self, fault: Exception | None) -> None:
        self._on_end()

    def send(self, lines: bytes) -> None:
        assert self._transport is not None, "listen() comes first"
        self._transport.write(lines)

    def exit_text(self) -> str | None:
        """How the process ended; None while it, or a process that it started, runs."""
        code = self._keeper.exit_code()
        return None if code is None else _describe(code)

    async def end(self, grace_s: float = 0.0) -> str:
        """Kills it after `grace_s` seconds to end by itself; its messages are ignored from then on. Returns how it
        ended."""
        how = await self._wait(grace_s)
        self._on_message, self._on_end = lambda message: None, lambda: None
        self._keeper.signal(signal.SIGTERM)
        self._keeper.signal(signal.SIGCONT)  # what a reward runs may have stopped its keeper
        if self._transport is None:
            self._socket.close()
        else:
            self._transport.abort()
        how = how or await self._wait(KILL_TIMEOUT_S)
        if how is None:
            self._keeper.kill()
        return how or self.exit_text() or "it cannot be killed"

    async def _wait(self, limit_s: float) -> str | None:
        until = time.monotonic() + limit_s
        while (how := self.exit_text()) is None and time.monotonic() < until:
            await asyncio.sleep(POLL_INTERVAL_S)
        return how


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
