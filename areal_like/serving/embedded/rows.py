"""What is known of each running sequence, as arrays with one row per slot of the cache.

Rows 0 to `count`-1 are in use.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.serving.embedded.queue import Ticket
from areal_like.serving.embedded.request import Sample

FIRST_COLUMNS = 16
NO_TOKEN = -1


class Interrupted(NamedTuple):
    """A sequence without a slot: it goes on when it gets one again."""

    ticket: Ticket
    sample: int
    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]


class Rows:
    def __init__(self, most: int) -> None:
        self.count = 0
        self.tickets: list[Ticket] = []
        self.cached = np.zeros(most, np.int64)
        """Tokens whose keys and values are in the cache: all but the newest."""
        self.generated = np.zeros(most, np.int64)
        self.limit = np.zeros(most, np.int64)
        self.temperature = np.ones(most, np.float32)
        self.greedy = np.zeros(most, np.bool_)
        self.seed = np.zeros(most, np.uint64)
        self.sample = np.zeros(most, np.uint64)
        self.newest = np.zeros(most, np.int64)
        self.stops = np.full((most, 1), NO_TOKEN, np.int64)
        self.token_ids = np.zeros((most, FIRST_COLUMNS), np.int64)
        self.logprobs = np.zeros((most, FIRST_COLUMNS), np.float32)
        self.versions = np.zeros((most, FIRST_COLUMNS), np.int32)

    def begin(self, ticket: Ticket, samples: Sequence[int], stops: Sequence[int]) -> NDArray[np.int64]:
        """New rows for samples of a group, none of which has a token yet."""
        rows = np.arange(self.count, self.count + len(samples))
        sampling = ticket.group.sampling
        self.tickets += [ticket] * len(samples)
        self.count += len(samples)
        self.cached[rows] = len(ticket.group.prompt)
        self.generated[rows] = 0
        self.limit[rows] = ticket.limit
        self.greedy[rows] = sampling.takes_likeliest
        self.temperature[rows] = 1.0 if sampling.takes_likeliest else sampling.temperature
        self.seed[rows] = np.uint64(ticket.group.seed)
        self.sample[rows] = samples
        if len(stops) > self.stops.shape[1]:
            self.stops = _widened(self.stops, len(stops), NO_TOKEN)
        self.stops[rows] = NO_TOKEN
        self.stops[rows, : len(stops)] = stops
        return rows

    def resume(self, one: Interrupted, stops: Sequence[int]) -> int:
        """A row for a sequence that was interrupted; its keys and values are still to be computed."""
        row = int(self.begin(one.ticket, [one.sample], stops)[0])
        length = len(one.token_ids)
        self._make_columns(length + 1)
        self.generated[row] = length
        self.cached[row] += length - 1
        self.newest[row] = one.token_ids[-1]
        for kept, given in (
            (self.token_ids, one.token_ids),
            (self.logprobs, one.logprobs),
            (self.versions, one.versions),
        ):
            kept[row, :length] = given
        return row

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], logprobs: NDArray[np.float32], version: int
    ) -> list[tuple[int, str]]:
        """One token more for each of `rows`; returns those that end by it, and how."""
        at = self.generated[rows]
        self._make_columns(int(at.max()) + 1)
        self.token_ids[rows, at] = self.newest[rows] = tokens
        self.logprobs[rows, at] = logprobs
        self.versions[rows, at] = version
        self.generated[rows] = at + 1
        stopped = (self.stops[rows] == tokens[:, None]).any(axis=1)
        ended = stopped | (at + 1 >= self.limit[rows])
        return [(int(rows[i]), "stop" if stopped[i] else "length") for i in np.flatnonzero(ended)]

    def take(self, row: int, finish: str) -> Sample:
        length = self.generated[row]
        return Sample(
            self.token_ids[row, :length].tolist(),
            self.logprobs[row, :length].tolist(),
            self.versions[row, :length].tolist(),
            finish,
        )

    def interrupt(self, row: int) -> Interrupted:
        length = self.generated[row]
        return Interrupted(
            self.tickets[row],
            int(self.sample[row]),
            self.token_ids[row, :length].copy(),
            self.logprobs[row, :length].copy(),
            self.versions[row, :length].copy(),
        )

    def sequence(self, row: int) -> list[int]:
        """The tokens whose keys and values the cache holds, or should."""
        return [*self.tickets[row].group.prompt, *self.token_ids[row, : self.generated[row] - 1].tolist()]

    def remove(self, gone: set[int]) -> tuple[list[int], list[int]]:
        """Fills the holes of removed rows with the last ones; returns which rows came (to, from)."""
        left = self.count - len(gone)
        to = sorted(row for row in gone if row < left)
        source = [row for row in range(left, self.count) if row not in gone]
        if to:
            for array in self._arrays():
                array[to] = array[source]
            for hole, row in zip(to, source, strict=True):
                self.tickets[hole] = self.tickets[row]
        del self.tickets[left:]
        self.count = left
        return to, source

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            *(self.cached, self.generated, self.limit, self.temperature, self.greedy, self.seed, self.sample),
            *(self.newest, self.stops, self.token_ids, self.logprobs, self.versions),
        )

    def _make_columns(self, columns: int) -> None:
        if columns > self.token_ids.shape[1]:
            columns = max(columns, 2 * self.token_ids.shape[1])
            self.token_ids = _widened(self.token_ids, columns)
            self.logprobs = _widened(self.logprobs, columns)
            self.versions = _widened(self.versions, columns)


def _widened(array: NDArray[Any], columns: int, filling: int = 0) -> NDArray[Any]:
    wide = np.full((len(array), columns), filling, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
