"""Size of the embedded engine's KV cache on a GPU that it has to itself: what weights and temporaries leave."""

from typing import NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.experiment import GRPOConfig
from areal_like.config.number_text import size_text
from areal_like.models.model_shape import ModelShape
from areal_like.serving.engines.embedded.memory import EngineShape, working_bytes


class ServerBytes(NamedTuple):
    weights: int
    """All sets of them."""
    sets: int
    working: int
    cache_per_token: int

    @property
    def text(self) -> str:
        twice = ", the next version included" if self.sets > 1 else ""
        return f"weights of {size_text(self.weights)}{twice}, and temporaries of {size_text(self.working)}"


def embedded_bytes(
    config: GRPOConfig, allocation: Allocation, shape: ModelShape, width: int, longest: int
) -> ServerBytes:
    """`width`: bytes of a weight; `longest`: tokens of the longest sequence."""
    sizes, embedded = engine_shape(shape, width), config.embedded
    sets = 2 if allocation.actor is not None and config.actor.weight_update_mode != "adapter" else 1
    captures = embedded.enforce_eager is not True
    working = working_bytes(sizes, embedded.max_running_requests, config.gconfig.n_samples, longest, captures)
    return ServerBytes(sets * shape.parameters() * width, sets, working, sizes.cache_bytes_per_token)


def engine_shape(shape: ModelShape, width: int) -> EngineShape:
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return EngineShape(shape.layers, shape.hidden, query, kv, shape.head_dim, shape.inner, shape.vocab, width)
