"""Which groups begin, and how far a long prompt is."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.serving.embedded.batching.long_prompt import LongPrompt
from areal_like.serving.embedded.batching.queue import Queue, Ticket
from areal_like.serving.embedded.batching.room import Room
from areal_like.serving.embedded.batching.rows import Rows
from areal_like.serving.embedded.batching.runner import MOST_AT_ONCE, Runner
from areal_like.serving.embedded.counts import Counts
from areal_like.serving.embedded.weights.lora import Adapter

log = logging.getLogger(__name__)

Part = tuple[tuple[int, ...], NDArray[np.int64]]
"""A prompt and the rows that begin with it."""


@dataclass
class Begun:
    """What begins with one step."""

    by_length: dict[int, list[Part]] = field(default_factory=dict)
    long: tuple[LongPrompt, NDArray[np.int64]] | None = None
    unusable: dict[int, str] = field(default_factory=dict)
    """Numbers of groups that could not begin, and why: they stay in the queue for who ends them."""

    def runs(self) -> Iterator[list[Part]]:
        """Prompts of one length, as many as one run of the model takes."""
        for length, parts in self.by_length.items():
            at_once = max(1, MOST_AT_ONCE // length)
            yield from (parts[start : start + at_once] for start in range(0, len(parts), at_once))


class Admission:
    """`current_adapter`: what a group of the run is generated with that begins now."""

    def __init__(
        self,
        queue: Queue,
        rows: Rows,
        room: Room,
        runner: Runner,
        counts: Counts,
        current_adapter: Callable[[], Adapter | None],
        piece: int,
    ) -> None:
        self._queue, self._rows, self._room, self._runner, self._counts = queue, rows, room, runner, counts
        self._current_adapter, self._piece = current_adapter, piece
        self._long: LongPrompt | None = None
        self._turn = 0

    def admit(self) -> Begun:
        """Lets groups in as long as there is room; of a long prompt, one piece is computed."""
        begun = Begun()
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

    def logits(self, begun: Begun) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
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

    def forget(self, ticket: Ticket | None = None) -> None:
        """What was computed of a long prompt is not wanted, or of no use, any more; None means any."""
        if self._long is not None and ticket in (None, self._long.ticket):
            self._long = None
            self._runner.cache.drop_beside()

    def _is_long(self, ticket: Ticket) -> bool:
        """Synchronous steps have the engine to themselves, and hold nobody up."""
        return len(ticket.group.prompt) > self._piece and ticket.group.order is None

    def _approach(self, ticket: Ticket) -> bool:
        """Computes one piece more; whether there is nothing left of it to compute."""
        if self._long is None or self._long.ticket is not ticket:
            self._begin(ticket)
            self._long = LongPrompt(ticket)
        if not self._long.is_done:
            self._counts.prompt_tokens += self._long.go_on(self._runner, self._piece)
        return self._long.is_done

    def _begin(self, ticket: Ticket) -> None:
        """What is decided when the first token of a group is computed."""
        if ticket.admitted or (self._long is not None and self._long.ticket is ticket):
            return
        ticket.turn = self._turn = self._turn + 1
        if ticket.group.adapter is None:
            ticket.adapter = self._current_adapter()
