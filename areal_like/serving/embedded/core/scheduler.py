"""Which groups begin, and how far a long prompt is."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.serving.embedded.core.cache_budget import CacheBudget
from areal_like.serving.embedded.core.chunked_prefill import ChunkedPrefill
from areal_like.serving.embedded.core.counts import EngineCounts
from areal_like.serving.embedded.core.model_runner import MAX_PREFILL_TOKENS, ModelRunner
from areal_like.serving.embedded.core.running_batch import RunningBatch
from areal_like.serving.embedded.core.waiting_queue import QueuedGroup, WaitingQueue
from areal_like.serving.embedded.weights.batched_lora import ServedAdapter

log = logging.getLogger(__name__)

PromptRows = tuple[tuple[int, ...], NDArray[np.int64]]
"""A prompt and the rows that begin with it."""


@dataclass
class PrefillBatch:
    """What begins with one step."""

    by_length: dict[int, list[PromptRows]] = field(default_factory=dict)
    long: tuple[ChunkedPrefill, NDArray[np.int64]] | None = None
    unusable: dict[int, str] = field(default_factory=dict)
    """Numbers of groups that could not begin, and why: they stay in the queue for who ends them."""

    def runs(self) -> Iterator[list[PromptRows]]:
        """Prompts of one length, as many as one run of the model takes."""
        for length, parts in self.by_length.items():
            at_once = max(1, MAX_PREFILL_TOKENS // length)
            yield from (parts[start : start + at_once] for start in range(0, len(parts), at_once))


class Scheduler:
    """`current_adapter`: what a group of the run is generated with that begins now."""

    def __init__(
        self,
        queue: WaitingQueue,
        rows: RunningBatch,
        room: CacheBudget,
        runner: ModelRunner,
        counts: EngineCounts,
        current_adapter: Callable[[], ServedAdapter | None],
        piece: int,
    ) -> None:
        self._queue, self._rows, self._room, self._runner, self._counts = queue, rows, room, runner, counts
        self._current_adapter, self._piece = current_adapter, piece
        self._long: ChunkedPrefill | None = None
        self._turn = 0

    def admit(self) -> PrefillBatch:
        """Lets groups in as long as there is room; of a long prompt, one piece is computed."""
        begun = PrefillBatch()
        while (ticket := self._queue.head(self._rows.count == 0)) is not None:
            is_long = self._is_long(ticket)
            if is_long and (begun.long is not None or not self._approach(ticket)):
                break
            share = self._room.share(ticket)
            if share == 0:
                break
            self._begin(ticket)
            before = self._rows.count
            try:
                rows = self._rows.begin(ticket, range(ticket.admitted, ticket.admitted + share))
            except Exception as fault:  # of the group's own numbers: it harms no other
                log.exception("group %r cannot begin", ticket.group.id)
                self._rows.forget(before)
                begun.unusable[ticket.number] = f"{type(fault).__name__}: {fault}"
                break
            if is_long and self._long is not None:
                begun.long = self._long, rows
            else:
                prompt = ticket.group.prompt
                begun.by_length.setdefault(len(prompt), []).append((prompt, rows))
            ticket.admitted += share
            if not ticket.num_waiting:
                self._queue.begun(ticket)
        return begun

    def logits(self, begun: PrefillBatch) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """After the last token of each prompt, for rows that have room in the cache."""
        for parts in begun.runs():
            self._counts.prompt_tokens += sum(len(prompt) for prompt, _ in parts)
            logits = self._runner.prompts(parts)
            yield np.concatenate([rows for _, rows in parts]), logits
        if begun.long is not None:
            long, rows = begun.long
            yield rows, long.place(self._runner, rows)
            if not long.ticket.num_waiting:
                self.forget(long.ticket)

    def forget(self, ticket: QueuedGroup | None = None) -> None:
        """What was computed of a long prompt is not wanted, or of no use, any more; None means any."""
        if self._long is not None and ticket in (None, self._long.ticket):
            self._long = None
            self._runner.cache.drop_beside()

    def _is_long(self, ticket: QueuedGroup) -> bool:
        """Synchronous steps have the engine to themselves, and hold nobody up."""
        return len(ticket.group.prompt) > self._piece and ticket.group.order is None

    def _approach(self, ticket: QueuedGroup) -> bool:
        """Computes one piece more; whether there is nothing left of it to compute."""
        if self._long is None or self._long.ticket is not ticket:
            self._begin(ticket)
            self._long = ChunkedPrefill(ticket)
        if not self._long.is_done:
            self._counts.prompt_tokens += self._long.go_on(self._runner, self._piece)
        return self._long.is_done

    def _begin(self, ticket: QueuedGroup) -> None:
        """What is decided when the first token of a group is computed."""
        if ticket.admitted or (self._long is not None and self._long.ticket is ticket):
            return
        ticket.turn = self._turn = self._turn + 1
        if ticket.group.adapter is None:
            ticket.adapter = self._current_adapter()
