"""Runs of the model that read and write the cache."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from areal_like.serving.embedded.core import attention
from areal_like.serving.embedded.core.kv_cache import BLOCK_SIZE, ChunkWrite, DecodeWrite, KVCache, PrefillWrite
from areal_like.serving.embedded.weights.batched_lora import BatchedLora, ServedAdapter

MAX_PREFILL_TOKENS = 8192
"""Tokens of prompts that are computed in one run of the model; a longer prompt is one run of its own."""


class ModelRunner:
    """`limit` bounds the tokens that the cache holds. Room in it must have been reserved before a run. `adapter_of`
    says what a row is generated with."""

    def __init__(self, model: PreTrainedModel, limit: int, adapter_of: Callable[[int], ServedAdapter | None]) -> None:
        model.train(False).set_attn_implementation(attention.ATTENTION_NAME)
        self.model, self.device = model, model.device
        self._lora, self._adapter_of = BatchedLora(model), adapter_of
        self.cache = KVCache(model.config.get_text_config().num_hidden_layers, limit // BLOCK_SIZE * BLOCK_SIZE)

    def prompts(self, parts: Sequence[tuple[tuple[int, ...], NDArray[np.int64]]]) -> torch.Tensor:
        """Computes prompts of one length, each for the rows that are given with it; the logits after the last token of
        each row."""
        of_row = np.concatenate([rows for _, rows in parts])
        source = self.tensor(np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts]))
        self.cache.plan(PrefillWrite(self.tensor(of_row), source))
        self._with_adapters_of(int(rows[0]) for _, rows in parts)
        return self._fill(np.array([prompt for prompt, _ in parts], np.int64)).index_select(0, source)

    def sequences(self, sequences: Sequence[list[int]], of_row: NDArray[np.int64]) -> None:
        """Computes keys and values of sequences of any lengths, the short ones together."""
        order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(sequences[order[end]]) <= MAX_PREFILL_TOKENS:
                end += 1
            chunk = order[start:end]
            # What stands right of a shorter sequence is seen by nothing before it, and overwritten when it grows.
            ids = np.zeros((len(chunk), len(sequences[chunk[-1]])), np.int64)
            for row, number in enumerate(chunk):
                ids[row, : len(sequences[number])] = sequences[number]
            self.cache.plan(PrefillWrite(self.tensor(of_row[chunk]), torch.arange(len(chunk), device=self.device)))
            self._with_adapters_of(int(row) for row in of_row[chunk])
            self._fill(ids)
            start = end

    def piece(self, prompt: Sequence[int], start: int, end: int, adapter: ServedAdapter | None) -> torch.Tensor:
        """Computes a part of one prompt behind those before it; the logits after its last token."""
        self.cache.plan(ChunkWrite(start, len(prompt)))
        self._lora.plan([adapter])
        at = torch.arange(start, end, device=self.device)
        mask = torch.arange(end, device=self.device) <= at[:, None] if start else None
        ids = self.tensor(np.array(prompt[start:end], np.int64))
        return self._run(ids[None], at[None], None if mask is None else mask[None, None])

    def place(self, of_row: NDArray[np.int64]) -> None:
        """Gives rows the prompt that was computed in pieces."""
        self.cache.place(self.tensor(of_row))

    def extend(self, tokens: NDArray[np.int64], at: NDArray[np.int64]) -> torch.Tensor:
        """One token more for each of the rows 0 to R-1, at the column `at` of its row; the logits after it."""
        at_R, width = self.tensor(at), int(at.max()) + 1
        mask = None
        if (at != at[0]).any():
            mask = (torch.arange(width, device=self.device) <= at_R[:, None])[:, None, None]
        self.cache.plan(DecodeWrite(torch.arange(len(at), device=self.device), at_R, width))
        self._with_adapters_of(range(len(at)))
        return self._run(self.tensor(tokens)[:, None], at_R[:, None], mask)

    def logprobs(self, token_ids: Sequence[int], adapter: ServedAdapter | None = None) -> list[float]:
        """Of each token after the first, given those before it, at temperature 1."""
        self._lora.plan([adapter])
        ids = torch.tensor([list(token_ids)], device=self.device)
        logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs: list[float] = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].tolist()
        return logprobs

    def all_logits(self, ids: torch.Tensor, start: int, cache: Cache, adapter: ServedAdapter | None) -> torch.Tensor:
        """After each token of a part of one sequence, behind those before it, whose keys and values are in `cache`."""
        self._lora.plan([adapter])
        at = torch.arange(start, start + len(ids), device=self.device)
        mask = torch.arange(start + len(ids), device=self.device) <= at[:, None] if start else None
        logits: torch.Tensor = self.model(
            input_ids=ids[None],
            position_ids=at[None],
            attention_mask=None if mask is None else mask[None, None],
            past_key_values=cache,
            use_cache=True,
        ).logits[0]
        return logits

    def _with_adapters_of(self, rows: Iterable[int]) -> None:
        """The next run of the model has a sequence for each of these rows."""
        self._lora.plan([self._adapter_of(row) for row in rows])

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
