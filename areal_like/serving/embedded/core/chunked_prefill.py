"""A long prompt on its way: computed piece by piece, with a step of what runs between two of them."""

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.serving.embedded.core.model_runner import ModelRunner
from areal_like.serving.embedded.core.waiting_queue import QueuedGroup

PREFILL_CHUNK = 1024
"""Tokens: enough to keep the processor busy, and few enough that running sequences hardly notice."""


class ChunkedPrefill:
    """What is computed stands beside the rows of the cache. It is worth nothing under new weights."""

    def __init__(self, ticket: QueuedGroup) -> None:
        self.ticket = ticket
        self._done = 0
        self._logits: torch.Tensor | None = None

    @property
    def is_done(self) -> bool:
        return self._done == len(self.ticket.group.prompt)

    def go_on(self, runner: ModelRunner, piece: int) -> int:
        """Computes the next piece, and returns how long it is."""
        prompt, begin = self.ticket.group.prompt, self._done
        self._done = min(begin + piece, len(prompt))
        self._logits = runner.piece(prompt, begin, self._done, self.ticket.adapter)
        return self._done - begin

    def place(self, runner: ModelRunner, of_row: NDArray[np.int64]) -> torch.Tensor:
        """Gives the prompt to rows that begin with it, and returns the logits after it for each of them."""
        assert self._logits is not None, "nothing of it was computed"
        runner.place(of_row)
        if not self.ticket.num_waiting:
            runner.cache.drop_beside()
        return self._logits.expand(len(of_row), -1)
