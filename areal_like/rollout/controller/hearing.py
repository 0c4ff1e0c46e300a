"""Whether a server goes on: one that owes answers, and neither answers nor counts anything, may hang."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.http import HttpClient

LOOK_S, LOOK_TIMEOUT_S = 2.0, 5.0
IDLE_LOOKS = 5
OWED = ("asked", "running", "waiting")
ALSO_CHANGES = ("busy_s", "expired", "set_aside")
"""Counts that change although nothing is generated."""


class Hearing:
    """From look to look. Pure."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._idle_looks = 0
        self._last: dict[str, Any] = {}
        self._looked_at: float | None = None

    def look(self, counts: dict[str, Any] | None, now: float) -> float:
        """`counts`: its statistics; None if it gave none. Returns how long it has been silent. That it owes nothing at
        a few looks means little: those who wait have given up, and ask again."""
        gap_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        owes, goes_on = counts is None, False
        if counts is not None:
            owes = any(counts.get(name) for name in OWED)
            counted = {name: count for name, count in counts.items() if name not in (*OWED, *ALSO_CHANGES)}
            goes_on, self._last = counted != self._last, counted
        self._idle_looks = 0 if owes else self._idle_looks + 1
        if goes_on or self._idle_looks >= IDLE_LOOKS:
            self.silent_s = 0.0
        elif owes or self.silent_s:
            self.silent_s += gap_s
        return self.silent_s


async def hear(http: HttpClient, address: str, report: Callable[[float], None]) -> None:
    """Runs until cancelled."""
    hearing = Hearing()
    while True:
        await asyncio.sleep(LOOK_S)
        report(hearing.look(await _counts(http, address), time.monotonic()))


async def _counts(http: HttpClient, address: str) -> dict[str, Any] | None:
    try:
        counts: dict[str, Any] = await http.json("GET", address, "/control/statistics", timeout_s=LOOK_TIMEOUT_S)
    except Unreachable:
        return None
    except HttpError as refusal:
        return None if refusal.status >= 500 else {}
    return counts
