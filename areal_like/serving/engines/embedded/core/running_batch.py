"""State of the running sequences, as arrays with one row per slot of the KV cache. Rows 0 to `count`-1 are in use."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.serving.engines.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.engines.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.engines.embedded.weights.batched_lora import ServedAdapter
from areal_like.serving.requests import GeneratedSample, GroupRequest, SampleWithTopLogprobs, Sampling
from areal_like.serving.stop_text import StopScanner, scan_tokens

log = logging.getLogger(__name__)

FIRST_COLUMNS = 16
NO_TOKEN = -1
SAMPLING_DTYPE = np.dtype(
    [
        *(("top_k", np.int64), ("top_p", np.float64), ("min_p", np.float32)),
        *(("frequency", np.float32), ("repetition", np.float32), ("min_new", np.int64)),
    ]
)
"""Sampling parameters of a row besides its temperature."""


@dataclass
class OutputTracker:
    """What is kept of a sequence besides its tokens where the group asks for it: the scan for stop texts, and for each
    token so far the most likely ones, in that order."""

    stop_scanner: StopScanner | None
    num_top_logprobs: int
    top_logprobs: list[dict[int, float]] = field(default_factory=list)


class PreemptedSequence(NamedTuple):
    """A sequence that lost its slot and waits for another."""

    queued: QueuedGroup
    sample: int
    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    tracker: OutputTracker | None


class RunningBatch:
    def __init__(self, max_rows: int) -> None:
        self.count = 0
        self.groups: list[QueuedGroup] = []
        self.trackers: list[OutputTracker | None] = []
        self.cached = np.zeros(max_rows, np.int64)
        """Tokens whose keys and values are in the cache: all but the newest."""
        self.generated = np.zeros(max_rows, np.int64)
        self.limit = np.zeros(max_rows, np.int64)
        self.temperature = np.ones(max_rows, np.float32)
        self.greedy = np.zeros(max_rows, np.bool_)
        self.seed = np.zeros(max_rows, np.uint64)
        self.sample = np.zeros(max_rows, np.uint64)
        self.newest = np.zeros(max_rows, np.int64)
        self.has_adapter = np.zeros(max_rows, np.bool_)
        self.is_tracked = np.zeros(max_rows, np.bool_)
        self.is_processed = np.zeros(max_rows, np.bool_)
        """Whether logits are processed beyond a temperature; `sampling` and `prompt_tokens` are only set where so."""
        self.sampling = np.zeros(max_rows, SAMPLING_DTYPE)
        self.prompt_tokens = np.zeros((max_rows, 1), np.int64)
        """Distinct tokens of the prompt, padded with the last one, where repetition is penalised."""
        self.stop_tokens = np.full((max_rows, 1), NO_TOKEN, np.int64)
        self.token_ids = np.zeros((max_rows, FIRST_COLUMNS), np.int64)
        self.logprobs = np.zeros((max_rows, FIRST_COLUMNS), np.float32)
        self.versions = np.zeros((max_rows, FIRST_COLUMNS), np.int32)

    def add(self, queued: QueuedGroup, samples: Sequence[int]) -> NDArray[np.int64]:
        """New rows for samples of a group that have no tokens yet."""
        rows = np.arange(self.count, self.count + len(samples))
        sampling = queued.group.sampling
        self.groups += [queued] * len(samples)
        self.trackers += [output_tracker(queued.group) for _ in samples]
        self.is_tracked[rows] = self.trackers[-1] is not None
        self.count += len(samples)
        self.cached[rows] = len(queued.group.prompt)
        self.has_adapter[rows] = queued.adapter is not None
        self.generated[rows] = 0
        self.limit[rows] = queued.limit
        self.greedy[rows] = sampling.is_greedy
        self.temperature[rows] = 1.0 if sampling.is_greedy else sampling.temperature
        self.seed[rows] = np.uint64(queued.group.seed)
        self.sample[rows] = samples
        stops = queued.stop_tokens
        if len(stops) > self.stop_tokens.shape[1]:
            self.stop_tokens = _widened(self.stop_tokens, len(stops), NO_TOKEN)
        self.stop_tokens[rows] = NO_TOKEN
        self.stop_tokens[rows, : len(stops)] = stops
        self.is_processed[rows] = not sampling.is_plain
        if not sampling.is_plain:
            self._set_sampling(rows, sampling, queued.group.prompt)
        return rows

    def truncate(self, count: int) -> None:
        """Drops rows from `count` on, after adding them failed."""
        del self.groups[count:], self.trackers[count:]
        self.count = count

    def _set_sampling(self, rows: NDArray[np.int64], sampling: Sampling, prompt: Sequence[int]) -> None:
        cut = (0, 1.0, 0.0) if sampling.is_greedy else (sampling.top_k, sampling.top_p, sampling.min_p)
        penalties = sampling.frequency_penalty, sampling.repetition_penalty
        self.sampling[rows] = (*cut, *penalties, sampling.min_new_tokens)
        tokens = np.unique(np.array(prompt, np.int64)) if sampling.repetition_penalty != 1 else np.array(prompt[:1])
        if len(tokens) > self.prompt_tokens.shape[1]:
            self.prompt_tokens = _widened(self.prompt_tokens, len(tokens))
        self.prompt_tokens[rows, : len(tokens)] = tokens
        self.prompt_tokens[rows, len(tokens) :] = tokens[-1]

    def resume(self, sequence: PreemptedSequence) -> int:
        """A row for a preempted sequence; its keys and values are still to be computed."""
        row = int(self.add(sequence.queued, [sequence.sample])[0])
        self.trackers[row] = sequence.tracker
        length = len(sequence.token_ids)
        self._make_columns(length + 1)
        self.generated[row] = length
        self.cached[row] += length - 1
        self.newest[row] = sequence.token_ids[-1]
        self.token_ids[row, :length] = sequence.token_ids
        self.logprobs[row, :length] = sequence.logprobs
        self.versions[row, :length] = sequence.versions
        return row

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], logprobs: NDArray[np.float32], version: int
    ) -> list[tuple[int, str]]:
        """One more token for each of `rows`; returns the rows that end with it, and their finish reasons. `version` is
        the model's; where a row has an adapter of the run, the adapter's version replaces it."""
        at = self.generated[rows]
        self._make_columns(int(at.max()) + 1)
        self.token_ids[rows, at] = self.newest[rows] = tokens
        self.logprobs[rows, at] = logprobs
        self.versions[rows, at] = version
        if self.has_adapter[rows].any():
            for row, place in zip(rows, at, strict=True):
                adapter = self.groups[row].adapter
                if adapter is not None and adapter.version is not None:
                    self.versions[row, place] = adapter.version
        self.generated[rows] = at + 1
        stopped = (self.stop_tokens[rows] == tokens[:, None]).any(axis=1)
        ended = stopped | (at + 1 >= self.limit[rows])
        return [(int(rows[i]), "stop" if stopped[i] else "length") for i in np.flatnonzero(ended)]

    def to_sample(self, row: int, finish: str) -> GeneratedSample:
        length, tracker = self.generated[row], self.trackers[row]
        token_ids: list[int] = self.token_ids[row, :length].tolist()
        logprobs: list[float] = self.logprobs[row, :length].tolist()
        versions: list[int] = self.versions[row, :length].tolist()
        if tracker is not None and tracker.num_top_logprobs:
            return SampleWithTopLogprobs(token_ids, logprobs, versions, finish, tracker.top_logprobs)
        return GeneratedSample(token_ids, logprobs, versions, finish)

    def trackers_of(self, rows: NDArray[np.int64]) -> list[tuple[int, OutputTracker]]:
        """Trackers among `rows`, each with its place there."""
        places = ((int(place), self.trackers[rows[place]]) for place in np.flatnonzero(self.is_tracked[rows]))
        return [(place, tracker) for place, tracker in places if tracker is not None]

    def must_continue(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the next token may not end the answer yet."""
        is_early: NDArray[np.bool_] = self.is_processed[rows] & (self.generated[rows] < self.sampling["min_new"][rows])
        return is_early

    def preempt(self, row: int) -> PreemptedSequence:
        """What `resume` needs; the row is still to be removed."""
        length = self.generated[row]
        return PreemptedSequence(
            self.groups[row],
            int(self.sample[row]),
            self.token_ids[row, :length].copy(),
            self.logprobs[row, :length].copy(),
            self.versions[row, :length].copy(),
            self.trackers[row],
        )

    def adapter(self, row: int) -> ServedAdapter | None:
        return self.groups[row].adapter

    def cached_tokens(self, row: int) -> list[int]:
        """Tokens whose keys and values belong in the cache."""
        return [*self.groups[row].group.prompt, *self.token_ids[row, : self.generated[row] - 1].tolist()]

    def age(self, row: int) -> tuple[int, int]:
        """Sort key: smaller is older."""
        return self.groups[row].turn, int(self.sample[row])

    def remove(self, removed: set[int]) -> tuple[list[int], list[int]]:
        """Fills the places of removed rows with the last rows; returns which rows were moved (to, from)."""
        left = self.count - len(removed)
        to = sorted(row for row in removed if row < left)
        source = [row for row in range(left, self.count) if row not in removed]
        if to:
            for array in self._arrays():
                array[to] = array[source]
            for hole, row in zip(to, source, strict=True):
                self.groups[hole] = self.groups[row]
                self.trackers[hole] = self.trackers[row]
        del self.groups[left:], self.trackers[left:]
        self.count = left
        return to, source

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (
            *(self.cached, self.generated, self.limit, self.temperature, self.greedy, self.seed, self.sample),
            *(self.newest, self.has_adapter, self.is_tracked, self.is_processed, self.stop_tokens),
            *(self.token_ids, self.logprobs, self.versions),
            *((self.sampling, self.prompt_tokens) if self.is_processed[: self.count].any() else ()),
        )

    def _make_columns(self, columns: int) -> None:
        if columns > self.token_ids.shape[1]:
            columns = max(columns, 2 * self.token_ids.shape[1])
            self.token_ids = _widened(self.token_ids, columns)
            self.logprobs = _widened(self.logprobs, columns)
            self.versions = _widened(self.versions, columns)


def output_tracker(group: GroupRequest) -> OutputTracker | None:
    stop, num_top = group.sampling.stop, group.top_logprobs
    return OutputTracker(StopScanner(stop) if stop else None, num_top) if stop or num_top else None


def record_top_logprobs(
    logits_RV: Tensor, temperature_R: Tensor, trackers: Sequence[tuple[int, OutputTracker]]
) -> None:
    """Each tracker comes with its place in the batch; the logits are those that are sampled from."""
    recorded = [(place, tracker) for place, tracker in trackers if tracker.num_top_logprobs]
    if not recorded:
        return
    places = torch.tensor([place for place, _ in recorded], device=logits_RV.device)
    scaled = logits_RV.index_select(0, places).float() / temperature_R.index_select(0, places)[:, None]
    num_top = min(max(tracker.num_top_logprobs for _, tracker in recorded), scaled.shape[1])
    best = torch.log_softmax(scaled, -1).topk(num_top)
    for (_, tracker), logprobs, tokens in zip(recorded, best.values.tolist(), best.indices.tolist(), strict=True):
        kept = list(zip(tokens, logprobs, strict=True))[: tracker.num_top_logprobs]
        tracker.top_logprobs.append({token: logprob for token, logprob in kept if logprob > -torch.inf})


def completed_stops(
    tokenizer: LazyTokenizer,
    trackers: Sequence[tuple[int, OutputTracker]],
    tokens: Sequence[int],
    must_continue: Sequence[bool],
) -> tuple[list[int], dict[int, str]]:
    """Places in the batch whose new token completes a stop text, and those whose text cannot be decoded, with the
    reason."""
    scanners = [(place, tracker.stop_scanner) for place, tracker in trackers if tracker.stop_scanner is not None]
    if not scanners:
        return [], {}
    places = [place for place, _ in scanners]
    new, may_end = [tokens[place] for place in places], [not must_continue[place] for place in places]
    try:
        are_complete = scan_tokens(tokenizer.decode_batch, [scanner for _, scanner in scanners], new, may_end)
    except Exception as fault:  # the library raises nothing narrower, and does not name the text
        log.exception("stop texts")
        return [], dict.fromkeys(places, f"stop: the tokenizer cannot read the answer: {fault}")
    return [place for place, is_complete in zip(places, are_complete, strict=True) if is_complete], {}


def _widened(array: NDArray[Any], columns: int, filling: int = 0) -> NDArray[Any]:
    wide = np.full((len(array), columns), filling, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
