"""A process of a reward as the pool sees it: the answers that were sent to it, and its messages."""

import asyncio
import logging
import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import orjson

from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.rewards.processes.starter import exit_text

log = logging.getLogger(__name__)


@dataclass(eq=False)
class WaitingAnswer:
    """An answer that waits for its reward."""

    line: bytes
    number: int
    future: "asyncio.Future[Reward]"
    failures: int = 0
    alone: bool = False
    """It was in a process that died, with others: it is sent alone to find out which one was the cause."""
    due_from: float = 0.0
    """When its deadline began: it was sent, or had its turn at what the reward waits for."""


class SeatOwner(Protocol):
    """The pool."""

    def on_message(self, seat: "Seat", message: dict[str, Any]) -> None: ...

    def on_end(self, seat: "Seat") -> None: ...


class Seat(asyncio.Protocol):
    """Answers are computed in the order in which they were sent, those of an async reward concurrently."""

    def __init__(self, number: int, wire: socket.socket, owner: SeatOwner) -> None:
        self.number = number
        self.pid: int | None = None
        """Once it is ready: the reward is imported."""
        self.sent: dict[int, WaitingAnswer] = {}
        self.progress_at = time.monotonic()
        """When it was started, was sent its first answer, or gave the last one."""
        self.kept_at = -math.inf
        """When it took far longer than usual and stayed in the pool for the time being."""
        self.is_outside = self.is_lowered = False
        self.is_computing = False
        """Rather than waiting, when it took far longer than usual."""
        self.is_stale = False
        """It was sent answers that others compute now."""
        self.reserved: list[WaitingAnswer] = []
        """What it is sent as soon as it is ready."""
        self.end_reason: str | None = None
        """Why it was asked to end; empty: it is no longer needed."""
        self.how: str = "it was closed"
        """Once it has ended."""
        self._owner, self._wire = owner, wire
        self._has_ended = False
        self._transport: asyncio.WriteTransport | None = None
        self._partial_line = b""
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=self._wire)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in filter(None, lines):
            try:
                message = orjson.loads(line)
            except orjson.JSONDecodeError:  # cut off by its end, or written by the reward
                log.warning("a reward's process sent what is not a message: %.80r", line)
                continue
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self.how = message["problem"] or f"it ended its process ({exit_text(message['ended'])})"
            self._end()
        elif not self._has_ended and self.end_reason is None:
            self._owner.on_message(self, message)

    def connection_lost(self, fault: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._owner.on_end(self)
            self.close()

    def send(self, samples: Sequence[WaitingAnswer]) -> None:
        assert self._transport is not None, "a seat is ready before it is sent anything"
        now = time.monotonic()
        if not self.sent:
            self.progress_at = now
        for sample in samples:
            sample.due_from = now
            self.sent[sample.number] = sample
        self._transport.write(b"".join(sample.line for sample in samples))

    def split(self) -> list[WaitingAnswer]:
        """Takes back all answers but the first."""
        others = list(self.sent.values())[1:]
        for sample in others:
            del self.sent[sample.number]
        self.is_stale = self.is_stale or bool(others)
        return others

    def dismiss(self) -> None:
        """Its messages and its end are ignored from now on."""
        self._has_ended = True

    def give_up(self) -> None:
        """It was asked to end, and did not."""
        self.how = "it cannot be killed"
        self._end()

    def close(self) -> None:
        self._connecting.cancel()
        if self._transport is None:
            self._wire.close()
        else:
            self._transport.abort()
