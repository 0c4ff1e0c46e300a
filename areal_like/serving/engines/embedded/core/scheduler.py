"""Scheduler: which groups start, which sequences are preempted and resumed, and how far a long prompt is computed."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.serving.engines.embedded.core.counts import EngineCounts
from areal_like.serving.engines.embedded.core.kv_cache import KVCache, round_up_to_block
from areal_like.serving.engines.embedded.core.model_runner import ModelRunner
from areal_like.serving.engines.embedded.core.running_batch import PreemptedSequence, RunningBatch
from areal_like.serving.engines.embedded.core.waiting_queue import QueuedGroup, WaitingQueue
from areal_like.serving.engines.embedded.memory import MAX_PREFILL_TOKENS
from areal_like.serving.engines.embedded.weights.adapters import AdapterRegistry

log = logging.getLogger(__name__)

PREFILL_CHUNK = 1024
"""Tokens: enough to keep the processor busy, and few enough to hardly delay running sequences."""
GROWTH_MARGIN = 64
"""Tokens that must be free for a new sequence, so that it is not preempted at once."""

PromptRows = tuple[tuple[int, ...], NDArray[np.int64]]
"""A prompt and the rows that start with it."""


class CacheBudget:
    """Space in the cache for further sequences."""

    def __init__(self, batch: RunningBatch, cache: KVCache, max_running: int) -> None:
        self._batch, self._cache, self._max_running = batch, cache, max_running

    @property
    def width(self) -> int:
        """Columns that the next step needs."""
        count = self._batch.count
        return int(self._batch.cached[:count].max()) + 1 if count else 0

    @property
    def fits_next_step(self) -> bool:
        return self._cache.fits(self._batch.count, self.width)

    def has_space(self, rows: int, queued: QueuedGroup, length: int) -> bool:
        """Whether so many more sequences of the group, with `length` tokens each, may start."""
        count = self._batch.count + rows
        columns = max(self.width, self._columns(queued, length))
        return count <= self._max_running and self._cache.fits(count, columns)

    def num_startable(self, queued: QueuedGroup) -> int:
        """How many samples of a group may start now: all that wait, or as many as ever fit at once; or none yet."""
        length = len(queued.group.prompt)
        max_rows = self._cache.limit // round_up_to_block(self._columns(queued, length))
        startable = min(queued.num_waiting, self._max_running, max_rows)
        return startable if self.has_space(startable, queued, length) else 0

    def _columns(self, queued: QueuedGroup, length: int) -> int:
        """Columns that must be free for a sequence of this length."""
        return min(length + GROWTH_MARGIN, len(queued.group.prompt) + queued.limit)


class ChunkedPrefill:
    """A long prompt, computed in chunks that take turns with decode steps. New weights make the chunks useless."""

    def __init__(self, queued: QueuedGroup) -> None:
        self.queued = queued
        self._num_computed = 0
        self._logits: torch.Tensor | None = None

    @property
    def is_done(self) -> bool:
        return self._num_computed == len(self.queued.group.prompt)

    def compute_chunk(self, runner: ModelRunner, max_tokens: int) -> int:
        """Computes the next chunk, and returns its length."""
        prompt, start = self.queued.group.prompt, self._num_computed
        self._num_computed = min(start + max_tokens, len(prompt))
        self._logits = runner.prefill_chunk(prompt, start, self._num_computed, self.queued.adapter)
        return self._num_computed - start

    def copy_to(self, runner: ModelRunner, rows: NDArray[np.int64]) -> torch.Tensor:
        """Copies the prompt to rows that start with it, and returns the logits after it for each of them."""
        assert self._logits is not None, "no chunk was computed"
        runner.copy_chunks(rows)
        if not self.queued.num_waiting:
            runner.cache.drop_chunks()
        return self._logits.repeat(len(rows), 1)  # a copy for each: logit processors write to it


@dataclass
class PrefillBatch:
    """The prompts of one step."""

    by_length: dict[int, list[PromptRows]] = field(default_factory=dict)
    chunked: tuple[ChunkedPrefill, NDArray[np.int64]] | None = None
    failed: dict[int, str] = field(default_factory=dict)
    """Numbers of groups that could not start, and why. They are still in the queue."""

    def passes(self) -> Iterator[list[PromptRows]]:
        """Prompts of one length, as many as one forward pass takes."""
        for length, prompts in self.by_length.items():
            num = max(1, MAX_PREFILL_TOKENS // length)
            yield from (prompts[start : start + num] for start in range(0, len(prompts), num))


class Scheduler:
    def __init__(
        self,
        batch: RunningBatch,
        runner: ModelRunner,
        adapters: AdapterRegistry,
        counts: EngineCounts,
        max_running: int,
        prefill_chunk: int,
    ) -> None:
        self.waiting = WaitingQueue()
        self.preempted: deque[PreemptedSequence] = deque()
        """The oldest first."""
        self.budget = CacheBudget(batch, runner.cache, max_running)
        self._batch, self._runner, self._adapters, self._counts = batch, runner, adapters, counts
        self._prefill_chunk = prefill_chunk
        self._chunked: ChunkedPrefill | None = None
        self._turn = 0

    def unfinished(self) -> Iterator[QueuedGroup]:
        """Every group that is not done, some more than once."""
        return chain(self._batch.groups, self.waiting, (sequence.queued for sequence in self.preempted))

    def start_groups(self) -> PrefillBatch:
        """Starts groups while there is space; computes at most one chunk of a long prompt."""
        prefill = PrefillBatch()
        while (queued := self.waiting.head(self._batch.count == 0)) is not None:
            is_long = self._is_long(queued)
            if is_long and (prefill.chunked is not None or not self._compute_chunk(queued)):
                break
            num = self.budget.num_startable(queued)
            if num == 0:
                break
            self._set_turn(queued)
            before = self._batch.count
            try:
                rows = self._batch.add(queued, range(queued.num_started, queued.num_started + num))
            except Exception as fault:  # caused by this group's numbers, so other groups go on
                log.exception("group %r cannot start", queued.group.id)
                self._batch.truncate(before)
                prefill.failed[queued.number] = f"{type(fault).__name__}: {fault}"
                break
            if is_long and self._chunked is not None:
                prefill.chunked = self._chunked, rows
            else:
                prompt = queued.group.prompt
                prefill.by_length.setdefault(len(prompt), []).append((prompt, rows))
            queued.num_started += num
            if not queued.num_waiting:
                self.waiting.remove_head()
        return prefill

    def prefill_logits(self, prefill: PrefillBatch) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Computes the prompts, whose rows must be reserved: rows, and the logits after their last token."""
        for prompts in prefill.passes():
            self._counts.prompt_tokens += sum(len(prompt) for prompt, _ in prompts)
            logits = self._runner.prefill(prompts)
            yield np.concatenate([rows for _, rows in prompts]), logits
        if prefill.chunked is not None:
            chunked, rows = prefill.chunked
            yield rows, chunked.copy_to(self._runner, rows)
            if not chunked.queued.num_waiting:
                self.drop_chunks(chunked.queued)

    def drop_chunks(self, queued: QueuedGroup | None = None) -> None:
        """Drops what is computed of this group's long prompt; None: of any."""
        if self._chunked is not None and queued in (None, self._chunked.queued):
            self._chunked = None
            self._runner.cache.drop_chunks()

    def resume_preempted(self) -> NDArray[np.int64]:
        """Gives rows to preempted sequences while there is space, the oldest first; returns the rows, whose keys and
        values are still to be computed."""
        resumed = []
        while self.preempted:
            sequence = self.preempted[0]
            length = len(sequence.queued.group.prompt) + len(sequence.token_ids)
            if not self.budget.has_space(1, sequence.queued, length):
                break
            self.preempted.popleft()
            resumed.append(self._batch.resume(sequence))
        return np.array(resumed, np.int64)

    def preempt_newest(self) -> None:
        """Preempts the newest sequences until the next token of all others fits into the cache."""
        while not self.budget.fits_next_step:
            newest = max(range(self._batch.count), key=self._batch.age)
            self.preempted.appendleft(self._batch.preempt(newest))
            self._counts.interrupted += 1
            self.free_rows({newest})

    def preempt_all(self) -> None:
        order = sorted(range(self._batch.count), key=self._batch.age)
        self.preempted.extendleft(self._batch.preempt(row) for row in reversed(order))
        self._counts.interrupted += len(order)
        self.free_rows(set(order))

    def remove(self, matches: Callable[[QueuedGroup], bool]) -> list[QueuedGroup]:
        """Removes the groups that match, whatever their state, and returns them."""
        running = {row for row, queued in enumerate(self._batch.groups) if matches(queued)}
        removed = {queued.number: queued for queued in self.waiting.remove(matches)}
        removed.update((one.queued.number, one.queued) for one in self.preempted if matches(one.queued))
        removed.update((self._batch.groups[row].number, self._batch.groups[row]) for row in running)
        self.preempted = deque(one for one in self.preempted if not matches(one.queued))
        self.free_rows(running)
        for queued in removed.values():
            self.drop_chunks(queued)
        return list(removed.values())

    def free_rows(self, rows: set[int]) -> None:
        if not rows:
            return
        to, source = self._batch.remove(rows)
        if to:
            width = int(self._batch.cached[to].max())
            with torch.inference_mode():
                self._runner.cache.move(self._runner.tensor(np.array(to)), self._runner.tensor(np.array(source)), width)
        if self._adapters.has_old:
            self.drop_old_adapters()

    def drop_old_adapters(self) -> None:
        self._adapters.drop_old({queued.adapter for queued in self.unfinished()})

    def _is_long(self, queued: QueuedGroup) -> bool:
        """A synchronous step has the engine to itself, so its prompts delay nothing."""
        return len(queued.group.prompt) > self._prefill_chunk and queued.group.order is None

    def _compute_chunk(self, queued: QueuedGroup) -> bool:
        """Computes one more chunk; returns whether the prompt is done."""
        if self._chunked is None or self._chunked.queued is not queued:
            self._set_turn(queued)
            self._chunked = ChunkedPrefill(queued)
        if not self._chunked.is_done:
            self._counts.prompt_tokens += self._chunked.compute_chunk(self._runner, self._prefill_chunk)
        return self._chunked.is_done

    def _set_turn(self, queued: QueuedGroup) -> None:
        """Fixes a group's age and adapter, when its first token is computed."""
        if queued.num_started or (self._chunked is not None and self._chunked.queued is queued):
            return
        queued.turn = self._turn = self._turn + 1
        if queued.group.adapter is None:
            queued.adapter = self._adapters.current
