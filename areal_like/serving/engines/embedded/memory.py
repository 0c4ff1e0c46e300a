"""What the engine takes beside the KV cache, by arithmetic, and the limits that it follows from. Imports no torch.

`tests/launcher/plan/test_embedded_memory.py` compares it with the bytes of real updates and steps.
"""

from typing import NamedTuple

MAX_PREFILL_TOKENS = 8192
"""Prompt tokens in one forward pass; a longer prompt has a pass by itself."""
MAX_LOGITS_AT_ONCE = 1 << 25
"""Logits turned into a distribution at once: their cumulative sums are in float64, eight bytes each."""
SAMPLING_BYTES = 12
"""Of each of them: a log-probability and a sum."""
GRAPH_BYTES = 1 << 29
"""Of captured steps beside their intermediate results. Not measured."""
FLOAT32 = 4


class EngineShape(NamedTuple):
    """`width`: bytes of a weight, an activation, and an entry of the cache; `inner`: width of the feed-forward part."""

    layers: int
    hidden: int
    query: int
    kv: int
    head_dim: int
    inner: int
    vocab: int
    width: int

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values. The keys of one layer are copied when the cache is arranged anew."""
        return (2 * self.layers + 1) * self.kv * self.width


def working_bytes(shape: EngineShape, requests: int, samples: int, longest: int, captures: bool) -> int:
    """Temporaries of the largest step: prompts of groups of so many `samples`, and `requests` sequences that get their
    next token; `longest`: tokens of the longest sequence."""
    width, logits = shape.width, requests * shape.vocab
    tokens = max(MAX_PREFILL_TOKENS, longest)
    started = min(samples * tokens, requests * longest)  # of sequences that start with these prompts
    prompts = tokens * pass_bytes_per_token(shape) + started * shape.kv * width
    sampling = 2 * width * logits + FLOAT32 * logits + SAMPLING_BYTES * min(logits, MAX_LOGITS_AT_ONCE)
    chunks = 2 * shape.layers * shape.kv * width * longest
    fixed = width * logits + requests * pass_bytes_per_token(shape) + GRAPH_BYTES if captures else 0
    return max(prompts, sampling) + chunks + fixed


def pass_bytes_per_token(shape: EngineShape) -> int:
    """Activations of one layer while its norms, its attention or its feed-forward part is computed."""
    width, norm = shape.width, 2 * FLOAT32
    rotation = shape.head_dim * (2 * width + norm)
    attention = width * (shape.query + 2 * shape.kv) + shape.query * max(norm, 4 * width)
    norms = (norm + width) * shape.hidden
    return 3 * width * shape.hidden + rotation + max(norms, attention, 3 * width * shape.inner)
