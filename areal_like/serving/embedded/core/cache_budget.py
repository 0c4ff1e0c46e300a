"""Whether there is room for another sequence."""

from areal_like.serving.embedded.core.kv_cache import KVCache, round_up_to_block
from areal_like.serving.embedded.core.running_batch import RunningBatch
from areal_like.serving.embedded.core.waiting_queue import QueuedGroup

GROWTH_MARGIN = 64
"""Tokens that a new sequence should find room for, so that it is not interrupted at once."""


class CacheBudget:
    """Of a cache, for the rows that are in it."""

    def __init__(self, rows: RunningBatch, cache: KVCache, max_running: int) -> None:
        self._rows, self._cache, self._max_running = rows, cache, max_running

    @property
    def width(self) -> int:
        """Columns that the next step needs."""
        count = self._rows.count
        return int(self._rows.cached[:count].max()) + 1 if count else 0

    def is_there(self, rows: int, ticket: QueuedGroup, length: int) -> bool:
        """Whether so many further sequences, of so many tokens each, should begin."""
        count = self._rows.count + rows
        return count <= self._max_running and self._cache.fits(count, max(self.width, self._wanted(ticket, length)))

    def share(self, ticket: QueuedGroup) -> int:
        """How many samples of a group may begin now: all that wait, or as many as ever fit at once; or none yet."""
        length = len(ticket.group.prompt)
        at_once = self._cache.limit // round_up_to_block(self._wanted(ticket, length))
        share = min(ticket.num_waiting, self._max_running, at_once)
        return share if self.is_there(share, ticket, length) else 0

    def _wanted(self, ticket: QueuedGroup, length: int) -> int:
        """Columns that a sequence of this length should find free."""
        return min(length + GROWTH_MARGIN, len(ticket.group.prompt) + ticket.limit)
