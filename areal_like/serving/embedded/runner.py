"""Runs of the model that read and write the cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from areal_like.serving.embedded import attention
from areal_like.serving.embedded.cache import BLOCK, Extend, Fill, SlotCache

MOST_AT_ONCE = 8192
"""Tokens of prompts that are computed in one run of the model; a longer prompt is one run of its own."""


class Runner:
    """`limit` bounds the tokens that the cache holds. Room in it must have been reserved before a run."""

    def __init__(self, model: PreTrainedModel, limit: int) -> None:
        model.train(False).set_attn_implementation(attention.NAME)
        self.model, self.device = model, model.device
        self.cache = SlotCache(model.config.get_text_config().num_hidden_layers, limit // BLOCK * BLOCK)

    def prompts(self, parts: Sequence[tuple[tuple[int, ...], NDArray[np.int64]]]) -> torch.Tensor:
        """Computes prompts of one length, each for the rows that are given with it; the logits after the last token of
        each row."""
        of_row = np.concatenate([rows for _, rows in parts])
        source = self.tensor(np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts]))
        self.cache.plan(Fill(self.tensor(of_row), source))
        return self._fill(np.array([prompt for prompt, _ in parts], np.int64)).index_select(0, source)

    def sequences(self, sequences: Sequence[list[int]], of_row: NDArray[np.int64]) -> None:
        """Computes keys and values of sequences of any lengths, the short ones together."""
        order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(sequences[order[end]]) <= MOST_AT_ONCE:
                end += 1
            chunk = order[start:end]
            # What stands right of a shorter sequence is seen by nothing before it, and overwritten when it grows.
            ids = np.zeros((len(chunk), len(sequences[chunk[-1]])), np.int64)
            for row, number in enumerate(chunk):
                ids[row, : len(sequences[number])] = sequences[number]
            self.cache.plan(Fill(self.tensor(of_row[chunk]), torch.arange(len(chunk), device=self.device)))
            self._fill(ids)
            start = end

    def extend(self, tokens: NDArray[np.int64], at: NDArray[np.int64]) -> torch.Tensor:
        """One token more for each of the rows 0 to R-1, at the column `at` of its row; the logits after it."""
        at_R, width = self.tensor(at), int(at.max()) + 1
        mask = None
        if (at != at[0]).any():
            mask = (torch.arange(width, device=self.device) <= at_R[:, None])[:, None, None]
        self.cache.plan(Extend(torch.arange(len(at), device=self.device), at_R, width))
        return self._run(self.tensor(tokens)[:, None], at_R[:, None], mask)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Of each token after the first, given those before it, at temperature 1."""
        ids = torch.tensor([list(token_ids)], device=self.device)
        logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        chosen: list[float] = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].tolist()
        return chosen

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _fill(self, ids: NDArray[np.int64]) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
        return self._run(self.tensor(ids), positions)

    def _run(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        return logits
