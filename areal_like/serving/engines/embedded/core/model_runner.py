"""Forward passes of the model over the KV cache."""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from areal_like.serving.engines.embedded.core.attention import ATTENTION_NAME
from areal_like.serving.engines.embedded.core.decode_graphs import Capture, DecodeGraphs
from areal_like.serving.engines.embedded.core.kv_cache import BLOCK_SIZE, ChunkWrite, DecodeWrite, KVCache, PrefillWrite
from areal_like.serving.engines.embedded.core.last_layer import shorten_last_layer
from areal_like.serving.engines.embedded.memory import MAX_PREFILL_TOKENS
from areal_like.serving.engines.embedded.weights.batched_lora import BatchedLora, ServedAdapter
from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer

MAX_CHUNK_LOGITS = 1 << 24
"""Logits of one chunk of a scored prompt; all of them are in memory at once."""

PromptLogprobs = tuple[list[float], list[dict[int, float]]]
"""For each token after the first: its log-probability at temperature 1, and the most likely tokens in its place."""


class ModelRunner:
    """`limit` bounds the tokens in the cache. Space must be reserved before a pass. `adapter_of` gives the adapter of a
    row."""

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        adapter_of: Callable[[int], ServedAdapter | None],
        weights: DoubleBuffer,
        max_rows: int,
        capture: Capture | None = None,
    ) -> None:
        """`capture`: how decode steps of up to `max_rows` sequences are captured; None: they are not."""
        model.train(False).set_attn_implementation(ATTENTION_NAME)
        shorten_last_layer(model)
        self.model, self.device = model, model.device
        self._lora, self._adapter_of = BatchedLora(model), adapter_of
        num_layers, limit = model.config.get_text_config().num_hidden_layers, limit // BLOCK_SIZE * BLOCK_SIZE
        self.cache = KVCache(num_layers, limit, is_fixed=self.device.type == "cuda" or capture is not None)
        self.graphs: DecodeGraphs | None = None
        if capture is not None:
            self.graphs = DecodeGraphs(self._decode_padded, self.cache, weights, max_rows, capture)

    def reserve(self, rows: int, columns: int, used_rows: int, used_columns: int) -> None:
        """Space in the cache for the next passes; used entries are kept."""
        shape = None if self.graphs is None else self.graphs.shape(rows, columns)
        self.cache.reserve(*(shape or (rows, columns)), used_rows, used_columns)

    def prefill(self, prompts: Sequence[tuple[tuple[int, ...], NDArray[np.int64]]]) -> torch.Tensor:
        """Computes prompts of one length, each for its rows; returns the logits after the last token, by row."""
        rows = np.concatenate([of_prompt for _, of_prompt in prompts])
        source = self.tensor(np.repeat(np.arange(len(prompts)), [len(of_prompt) for _, of_prompt in prompts]))
        self.cache.set_write(PrefillWrite(self.tensor(rows), source))
        self._use_adapters_of(int(of_prompt[0]) for _, of_prompt in prompts)
        return self._run_whole(np.array([prompt for prompt, _ in prompts], np.int64)).index_select(0, source)

    def recompute(self, sequences: Sequence[list[int]], rows: NDArray[np.int64]) -> None:
        """Computes keys and values of sequences of any lengths, short ones in one batch."""
        order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(sequences[order[end]]) <= MAX_PREFILL_TOKENS:
                end += 1
            batch = order[start:end]
            # Padding on the right: no earlier token attends to it, and later tokens overwrite it.
            ids = np.zeros((len(batch), len(sequences[batch[-1]])), np.int64)
            for place, number in enumerate(batch):
                ids[place, : len(sequences[number])] = sequences[number]
            self.cache.set_write(PrefillWrite(self.tensor(rows[batch]), torch.arange(len(batch), device=self.device)))
            self._use_adapters_of(int(row) for row in rows[batch])
            self._run_whole(ids)
            start = end

    def prefill_chunk(self, prompt: Sequence[int], start: int, end: int, adapter: ServedAdapter | None) -> torch.Tensor:
        """Computes one chunk of a prompt after the chunks before it; returns the logits after its last token."""
        self.cache.set_write(ChunkWrite(start, len(prompt)))
        self._lora.set_batch([adapter])
        at = torch.arange(start, end, device=self.device)
        mask = torch.arange(end, device=self.device) <= at[:, None] if start else None
        ids = self.tensor(np.array(prompt[start:end], np.int64))
        return self._run(ids[None], at[None], None if mask is None else mask[None, None])

    def copy_chunks(self, rows: NDArray[np.int64]) -> None:
        """Copies the prompt that was computed in chunks to these rows."""
        self.cache.copy_chunks(self.tensor(rows))

    def decode(self, tokens: NDArray[np.int64], at: NDArray[np.int64]) -> torch.Tensor:
        """Computes one token for each of the rows 0 to R-1, at column `at` of its row; returns the logits after it."""
        self._use_adapters_of(range(len(at)))
        if self.graphs is not None and not self._lora.is_active:
            logits = self.graphs.run(tokens, at)
            if logits is not None:
                return logits
        at_R, width = self.tensor(at), int(at.max()) + 1
        mask = None
        if (at != at[0]).any():
            mask = (torch.arange(width, device=self.device) <= at_R[:, None])[:, None, None]
        self.cache.set_write(DecodeWrite(torch.arange(len(at), device=self.device), at_R, width))
        return self._run(self.tensor(tokens)[:, None], at_R[:, None], mask)

    def _decode_padded(self, tokens_and_places_R2: torch.Tensor, columns: int) -> torch.Tensor:
        """The same with one input, fixed shapes, and nothing that depends on values."""
        at_R = tokens_and_places_R2[:, 1]
        mask = (torch.arange(columns, device=self.device) <= at_R[:, None])[:, None, None]
        self.cache.set_write(DecodeWrite(torch.arange(len(at_R), device=self.device), at_R, columns))
        return self._run(tokens_and_places_R2[:, :1], at_R[:, None], mask)

    def logprobs(self, token_ids: Sequence[int], adapter: ServedAdapter | None = None) -> list[float]:
        """Of each token after the first, given those before it, at temperature 1."""
        self._lora.set_batch([adapter])
        ids = torch.tensor([list(token_ids)], device=self.device)
        logits = self.model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs: list[float] = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].tolist()
        return logprobs

    def chunk_logits(self, ids: torch.Tensor, start: int, cache: Cache, adapter: ServedAdapter | None) -> torch.Tensor:
        """After each token of a chunk; keys and values of the chunks before it are in `cache`."""
        self._lora.set_batch([adapter])
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

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """On the model's device. The host does not wait for the copy."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _use_adapters_of(self, rows: Iterable[int]) -> None:
        """Sets the adapters of the next pass, which has a sequence for each of these rows."""
        self._lora.set_batch([self._adapter_of(row) for row in rows])

    def _run_whole(self, ids: NDArray[np.int64]) -> torch.Tensor:
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


def prompt_logprobs(
    runner: ModelRunner,
    weights: DoubleBuffer,
    prompt: Sequence[int],
    num_top: int,
    adapter: ServedAdapter | None,
    prefill_chunk: int,
) -> Generator[None, None, PromptLogprobs]:
    """Computes them in chunks of at most `prefill_chunk` tokens and yields after each. Starts again when new weights
    came in between. `num_top`: number of most likely tokens in each place."""
    chunk = max(1, min(prefill_chunk, MAX_CHUNK_LOGITS // runner.model.config.get_text_config().vocab_size))
    swaps, cache, start = weights.swaps, DynamicCache(), 0
    logprobs: list[float] = []
    top_logprobs: list[dict[int, float]] = []
    while start < len(prompt) - 1:
        if weights.swaps != swaps:
            swaps, cache, start = weights.swaps, DynamicCache(), 0
            logprobs, top_logprobs = [], []
        end = min(start + chunk, len(prompt) - 1)
        of_chunk = _chunk_logprobs(runner, cache, prompt, start, end, num_top, adapter)
        logprobs += of_chunk[0]
        top_logprobs += of_chunk[1]
        start = end
        yield
    return logprobs, top_logprobs


@torch.inference_mode()
def _chunk_logprobs(
    runner: ModelRunner,
    cache: DynamicCache,
    prompt: Sequence[int],
    start: int,
    end: int,
    num_top: int,
    adapter: ServedAdapter | None,
) -> PromptLogprobs:
    ids = torch.tensor(prompt[start : end + 1], device=runner.device)
    logprobs_TV = torch.log_softmax(runner.chunk_logits(ids[:-1], start, cache, adapter).float(), -1)
    best = logprobs_TV.topk(min(num_top, logprobs_TV.shape[1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    top_logprobs = [dict(zip(tokens, logprobs, strict=True)) for tokens, logprobs in pairs]
    return logprobs_TV.gather(1, ids[1:, None])[:, 0].tolist(), top_logprobs
