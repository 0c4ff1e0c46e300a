"""Host memory that GPUs copy to and from. torch allocates such page-locked memory in powers of two and keeps it for
the next step (`areal_like/training/offload.py`): a tensor may take twice its size."""

from typing import TYPE_CHECKING

from areal_like.models.model_shape import ModelShape
from launcher.plan.step_memory import layer_tensors, num_recomputed_layers

if TYPE_CHECKING:
    from areal_like.config.sections.train_engine import TrainEngineConfig


def allocated(size: int) -> int:
    """For a tensor of so many bytes."""
    return 1 << (size - 1).bit_length() if size else 0


def rounding(shape: ModelShape, width: int, split: int, is_critic: bool) -> int:
    """What a copy of all weights, `width` bytes for each, takes more than its size; each is split over some ranks."""
    per_layer = [*_attention(shape), *_feed_forward(shape)]
    outside = [shape.embedding] * (1 if shape.tied or is_critic else 2)
    sizes = [-(-number // split) * width for number in (*outside, *per_layer * shape.layers)]
    return sum(map(allocated, sizes)) - sum(sizes)


def activation_bytes(engine: "TrainEngineConfig", shape: ModelShape, width: int) -> int:
    """Of the activations of a micro-batch of the greatest length, where they are moved to the host."""
    tokens, offloading = engine.mb_spec.token_limit, engine.activation_offloading
    if offloading is None or engine.optimizer is None or tokens is None:
        return 0
    recomputed = num_recomputed_layers(engine, shape)
    kept = [size * tokens for size in layer_tensors(shape, width)]
    inputs = width * shape.hidden * tokens
    if offloading.pin_memory:
        kept, inputs = [allocated(size) for size in kept], allocated(inputs)
    return recomputed * inputs + (shape.layers - recomputed) * sum(kept)


def _attention(shape: ModelShape) -> list[int]:
    query, kv = shape.hidden * shape.heads * shape.head_dim, shape.hidden * shape.kv_heads * shape.head_dim
    return [query, kv, kv, query] if 2 * (query + kv) <= shape.attention else [shape.attention]


def _feed_forward(shape: ModelShape) -> list[int]:
    """Experts are in two tensors: for what goes in, and for what comes out."""
    third = shape.mlp // 3
    return [third] * 3 if third == shape.hidden * shape.inner else [2 * third, third]
