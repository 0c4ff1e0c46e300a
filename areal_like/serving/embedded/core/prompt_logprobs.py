"""Log-probabilities of a prompt's own tokens, for clients: computed piece by piece, so that nobody waits for all of
it."""

from collections.abc import Generator, Sequence

import torch
from transformers import DynamicCache

from areal_like.serving.embedded.core.model_runner import ModelRunner
from areal_like.serving.embedded.weights.batched_lora import ServedAdapter
from areal_like.serving.embedded.weights.double_buffer import DoubleBuffer

MAX_CHUNK_LOGITS = 1 << 24
"""Of one piece: they stand in memory all at once."""

PromptLogprobs = tuple[list[float], list[dict[int, float]]]
"""Of each token after the first: its log-probability at temperature 1, and the likeliest tokens in its place."""


def prompt_logprobs(
    runner: ModelRunner,
    weights: DoubleBuffer,
    prompt: Sequence[int],
    number: int,
    adapter: ServedAdapter | None,
    piece: int,
) -> Generator[None, None, PromptLogprobs]:
    """Stops after each piece of at most so many tokens. What was computed is worth nothing under new weights: it then
    begins anew. `number`: how many of the likeliest tokens."""
    at_once = max(1, min(piece, MAX_CHUNK_LOGITS // runner.model.config.get_text_config().vocab_size))
    swaps, cache, start = weights.swaps, DynamicCache(), 0
    logprobs: list[float] = []
    alternatives: list[dict[int, float]] = []
    while start < len(prompt) - 1:
        if weights.swaps != swaps:
            swaps, cache, start = weights.swaps, DynamicCache(), 0
            logprobs, alternatives = [], []
        end = min(start + at_once, len(prompt) - 1)
        of_piece = _piece(runner, cache, prompt, start, end, number, adapter)
        logprobs += of_piece[0]
        alternatives += of_piece[1]
        start = end
        yield
    return logprobs, alternatives


@torch.inference_mode()
def _piece(
    runner: ModelRunner,
    cache: DynamicCache,
    prompt: Sequence[int],
    start: int,
    end: int,
    number: int,
    adapter: ServedAdapter | None,
) -> PromptLogprobs:
    ids = torch.tensor(prompt[start : end + 1], device=runner.device)
    chances_TV = torch.log_softmax(runner.all_logits(ids[:-1], start, cache, adapter).float(), -1)
    best = chances_TV.topk(min(number, chances_TV.shape[1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    alternatives = [dict(zip(tokens, chances, strict=True)) for tokens, chances in pairs]
    return chances_TV.gather(1, ids[1:, None])[:, 0].tolist(), alternatives
