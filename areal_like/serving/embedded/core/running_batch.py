"""What is known of each running sequence, as arrays with one row per slot of the cache.

Rows 0 to `count`-1 are in use.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.serving.embedded.core.output_tracker import OutputTracker, output_tracker
from areal_like.serving.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.embedded.weights.batched_lora import ServedAdapter
from areal_like.serving.requests import GeneratedSample, SampleWithTopLogprobs, Sampling

FIRST_COLUMNS = 16
NO_TOKEN = -1
SAMPLING_DTYPE = np.dtype(
    [
        *(("top_k", np.int64), ("top_p", np.float64), ("min_p", np.float32)),
        *(("frequency", np.float32), ("repetition", np.float32), ("min_new", np.int64)),
    ]
)
"""What a row asks for that is more than a temperature."""


class PreemptedSequence(NamedTuple):
    """A sequence without a slot: it goes on when it gets one again."""

    ticket: QueuedGroup
    sample: int
    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    followed: OutputTracker | None


class RunningBatch:
    def __init__(self, most: int) -> None:
        self.count = 0
        self.tickets: list[QueuedGroup] = []
        self.followed: list[OutputTracker | None] = []
        self.cached = np.zeros(most, np.int64)
        """Tokens whose keys and values are in the cache: all but the newest."""
        self.generated = np.zeros(most, np.int64)
        self.limit = np.zeros(most, np.int64)
        self.temperature = np.ones(most, np.float32)
        self.greedy = np.zeros(most, np.bool_)
        self.seed = np.zeros(most, np.uint64)
        self.sample = np.zeros(most, np.uint64)
        self.newest = np.zeros(most, np.int64)
        self.is_adapted = np.zeros(most, np.bool_)
        self.is_followed = np.zeros(most, np.bool_)
        self.is_shaped = np.zeros(most, np.bool_)
        """Whether it asks for more than a temperature; `asked` and `seen` count for such rows alone."""
        self.asked = np.zeros(most, SAMPLING_DTYPE)
        self.seen = np.zeros((most, 1), np.int64)
        """The different tokens of the prompt, the last one again and again, where repetition is penalised."""
        self.stops = np.full((most, 1), NO_TOKEN, np.int64)
        self.token_ids = np.zeros((most, FIRST_COLUMNS), np.int64)
        self.logprobs = np.zeros((most, FIRST_COLUMNS), np.float32)
        self.versions = np.zeros((most, FIRST_COLUMNS), np.int32)

    def begin(self, ticket: QueuedGroup, samples: Sequence[int]) -> NDArray[np.int64]:
        """New rows for samples of a group, none of which has a token yet."""
        rows = np.arange(self.count, self.count + len(samples))
        sampling = ticket.group.sampling
        self.tickets += [ticket] * len(samples)
        self.followed += [output_tracker(ticket.group) for _ in samples]
        self.is_followed[rows] = self.followed[-1] is not None
        self.count += len(samples)
        self.cached[rows] = len(ticket.group.prompt)
        self.is_adapted[rows] = ticket.adapter is not None
        self.generated[rows] = 0
        self.limit[rows] = ticket.limit
        self.greedy[rows] = sampling.is_greedy
        self.temperature[rows] = 1.0 if sampling.is_greedy else sampling.temperature
        self.seed[rows] = np.uint64(ticket.group.seed)
        self.sample[rows] = samples
        stops = ticket.ends
        if len(stops) > self.stops.shape[1]:
            self.stops = _widened(self.stops, len(stops), NO_TOKEN)
        self.stops[rows] = NO_TOKEN
        self.stops[rows, : len(stops)] = stops
        self.is_shaped[rows] = not sampling.is_plain
        if not sampling.is_plain:
            self._ask(rows, sampling, ticket.group.prompt)
        return rows

    def forget(self, count: int) -> None:
        """Those after so many, which did not begin as they should."""
        del self.tickets[count:], self.followed[count:]
        self.count = count

    def _ask(self, rows: NDArray[np.int64], sampling: Sampling, prompt: Sequence[int]) -> None:
        cut = (0, 1.0, 0.0) if sampling.is_greedy else (sampling.top_k, sampling.top_p, sampling.min_p)
        penalties = sampling.frequency_penalty, sampling.repetition_penalty
        self.asked[rows] = (*cut, *penalties, sampling.min_new_tokens)
        seen = np.unique(np.array(prompt, np.int64)) if sampling.repetition_penalty != 1 else np.array(prompt[:1])
        if len(seen) > self.seen.shape[1]:
            self.seen = _widened(self.seen, len(seen))
        self.seen[rows, : len(seen)] = seen
        self.seen[rows, len(seen) :] = seen[-1]

    def resume(self, one: PreemptedSequence) -> int:
        """A row for a sequence that was interrupted; its keys and values are still to be computed."""
        row = int(self.begin(one.ticket, [one.sample])[0])
        self.followed[row] = one.followed
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
        """One token more for each of `rows`; returns those that end by it, and how. `version`: of the model, which an
        adapter of the run replaces by its own."""
        at = self.generated[rows]
        self._make_columns(int(at.max()) + 1)
        self.token_ids[rows, at] = self.newest[rows] = tokens
        self.logprobs[rows, at] = logprobs
        self.versions[rows, at] = version
        if self.is_adapted[rows].any():
            for row, place in zip(rows, at, strict=True):
                adapter = self.tickets[row].adapter
                if adapter is not None and adapter.version is not None:
                    self.versions[row, place] = adapter.version
        self.generated[rows] = at + 1
        stopped = (self.stops[rows] == tokens[:, None]).any(axis=1)
        ended = stopped | (at + 1 >= self.limit[rows])
        return [(int(rows[i]), "stop" if stopped[i] else "length") for i in np.flatnonzero(ended)]

    def take(self, row: int, finish: str) -> GeneratedSample:
        length, followed = self.generated[row], self.followed[row]
        found = (
            self.token_ids[row, :length].tolist(),
            self.logprobs[row, :length].tolist(),
            self.versions[row, :length].tolist(),
            finish,
        )
        if followed is not None and followed.num_alternatives:
            return SampleWithTopLogprobs(*found, followed.alternatives)
        return GeneratedSample(*found)

    def followed_of(self, of_row: NDArray[np.int64]) -> list[tuple[int, OutputTracker]]:
        """Those of a batch that are followed, with their places in it."""
        found = ((int(place), self.followed[of_row[place]]) for place in np.flatnonzero(self.is_followed[of_row]))
        return [(place, one) for place, one in found if one is not None]

    def is_early(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether an answer may not end by its next token."""
        early: NDArray[np.bool_] = self.is_shaped[rows] & (self.generated[rows] < self.asked["min_new"][rows])
        return early

    def interrupt(self, row: int) -> PreemptedSequence:
        length = self.generated[row]
        return PreemptedSequence(
            self.tickets[row],
            int(self.sample[row]),
            self.token_ids[row, :length].copy(),
            self.logprobs[row, :length].copy(),
            self.versions[row, :length].copy(),
            self.followed[row],
        )

    def adapter(self, row: int) -> ServedAdapter | None:
        """What a row is generated with, beside the model."""
        return self.tickets[row].adapter

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
                self.followed[hole] = self.followed[row]
        del self.tickets[left:], self.followed[left:]
        self.count = left
        return to, source

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            *(self.cached, self.generated, self.limit, self.temperature, self.greedy, self.seed, self.sample),
            *(
                self.newest,
                self.is_adapted,
                self.is_followed,
                self.is_shaped,
                self.stops,
                self.token_ids,
                self.logprobs,
                self.versions,
            ),
            *((self.asked, self.seen) if self.is_shaped[: self.count].any() else ()),
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
