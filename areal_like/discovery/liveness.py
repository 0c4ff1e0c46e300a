"""Decides whether the process that owns an entry is dead."""

import threading
import time
from collections.abc import Callable

from areal_like.discovery.owner import OwnerProcess, is_alive
from areal_like.discovery.slot import HeldEntry


class HeartbeatCounters:
    """Counters of other processes' entries, and when they moved by this process's clock: clocks of two hosts are never
    compared."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int | None, float]] = {}

    def unchanged_s(self, id: str, counter: int | None) -> float:
        """For how long that entry's counter is known not to have moved: 0 when first seen. A counter that cannot be
        read now is None, and changes nothing."""
        with self._lock:
            now = self._clock()
            before = self._seen.get(id)
            if before is None or counter not in (before[0], None):
                self._seen[id] = (counter, now)
                return 0.0
            return now - before[1]


class Liveness:
    """Checks the process itself if it runs on this machine, otherwise its counter."""

    def __init__(self, me: OwnerProcess, ttl_s: float) -> None:
        self._me, self._ttl_s = me, ttl_s
        self._counters = HeartbeatCounters()

    def why_dead(self, held: HeldEntry) -> str | None:
        """Why the owner counts as dead; None if it is alive, or that is not known yet."""
        if self.is_local(held):
            return None if held.claim.owner is None or is_alive(held.claim.owner) else "that process has ended"
        counter = None if held.state is None else held.state.counter
        unchanged_s = self._counters.unchanged_s(held.claim.id, counter)
        return f"its counter stood still for {unchanged_s:.0f} s" if unchanged_s >= self.ttl_of(held) else None

    def is_local(self, held: HeldEntry) -> bool:
        """Whether the owner's process runs on this machine."""
        return held.claim.owner is not None and held.claim.owner.is_local(self._me)

    def ttl_of(self, held: HeldEntry) -> float:
        """The longer one of this process's and the owner's ttl."""
        return max(self._ttl_s, held.claim.ttl_s)


def has_moved(before: HeldEntry | None, now: HeldEntry) -> bool:
    """Whether the entry has changed between two reads, so that its owner is alive."""
    if before is None:
        return False
    if before.claim.id != now.claim.id:
        return True
    return before.state is not None and now.state is not None and before.state != now.state
