"""Bytes that a training step of one model takes on one rank beside weights, gradients and optimizer, by arithmetic.

A step needs most at the end of the forward pass or in the backward pass of the last layers, when the activations of
all layers are in memory. Sums are upper limits: not all of their parts are in memory at the same moment.
"""

from typing import TYPE_CHECKING

from areal_like.models.model_shape import BYTES, ModelShape

if TYPE_CHECKING:
    from areal_like.config.sections.train_engine import TrainEngineConfig

FLOAT32 = 4
LOGITS_AT_ONCE = {False: 1 << 24, True: 1 << 28}
"""By whether it is on a GPU: the largest number of logits in memory (`algorithms/logprobs.py`)."""


def activation_bytes_per_token(engine: "TrainEngineConfig", shape: ModelShape) -> int:
    """Of each token in a micro-batch, prompts included: what all layers keep for the backward pass, and what the layer
    in progress needs. Of uncompiled layers: compiled ones need less, and may turn out not to work."""
    if engine.optimizer is None:
        return _layer_bytes(shape, BYTES[engine.dtype])
    return kept_bytes_per_token(engine, shape) + in_progress_bytes_per_token(engine, shape)


def kept_bytes_per_token(engine: "TrainEngineConfig", shape: ModelShape) -> int:
    """What stays on the device between forward and backward pass."""
    width = BYTES[engine.dtype]
    last_norm = _norm_bytes(shape, width) + 2 * width * shape.hidden
    if engine.activation_offloading is not None:
        return last_norm
    recomputed = num_recomputed_layers(engine, shape)
    whole = (shape.layers - recomputed) * _layer_bytes(shape, width)
    return recomputed * width * shape.hidden + whole + last_norm


def in_progress_bytes_per_token(engine: "TrainEngineConfig", shape: ModelShape) -> int:
    """What the backward pass of one layer adds: gradients, and the activations that are computed again or fetched."""
    width = BYTES[engine.dtype]
    gradients = 2 * width * shape.inner + 2 * FLOAT32 * shape.hidden
    is_made_again = num_recomputed_layers(engine, shape) or engine.activation_offloading is not None
    return gradients + (_layer_bytes(shape, width) if is_made_again else 0)


def num_recomputed_layers(engine: "TrainEngineConfig", shape: ModelShape) -> int:
    if not engine.gradient_checkpointing:
        return 0
    freq = engine.activation_checkpointing.freq if engine.activation_checkpointing else 1
    return -(-shape.layers // freq)


def layer_tensors(shape: ModelShape, width: int) -> list[int]:
    """Activations that a layer keeps: of each tensor the bytes per token. Norms keep a float32 copy of their input."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = [*2 * _norm_tensors(shape, width), *2 * (width * query, width * kv), FLOAT32 * shape.heads]
    if shape.norms_heads:
        tensors += [number * each for number in (query, kv) for each in (width, FLOAT32)]
    return [*tensors, *4 * (width * shape.inner,)]


def _layer_bytes(shape: ModelShape, width: int) -> int:
    return sum(layer_tensors(shape, width))


def _norm_tensors(shape: ModelShape, width: int) -> tuple[int, ...]:
    return (width * shape.hidden, width * shape.hidden, FLOAT32 * shape.hidden)


def _norm_bytes(shape: ModelShape, width: int) -> int:
    return sum(_norm_tensors(shape, width))


def working_bytes(engine: "TrainEngineConfig", shape: ModelShape, shards: int, tensor: int, on_gpu: bool) -> int:
    """What a step of any length takes: embedding and head, which are gathered during the whole pass, and the larger of
    two stages: the logits, or the backward pass of a layer."""
    width, root = BYTES[engine.dtype], shape.outside_layers(engine.is_critic) // tensor
    head = head_bytes(engine, shape, on_gpu) if not engine.is_critic else 0
    stages = max(head, layer_stage_bytes(engine, shape, shards, tensor))
    return max(width * root + stages, export_bytes(engine, shape))


def layer_stage_bytes(engine: "TrainEngineConfig", shape: ModelShape, shards: int, tensor: int) -> int:
    """Gathered layers, and gradients on their way to their shards; those of embedding and head wait for the end."""
    width, reduced = BYTES[engine.dtype], BYTES[engine.grad_reduce_dtype]
    root, layer = shape.outside_layers(engine.is_critic) // tensor, shape.layer // tensor
    copies = 1 if shards == 1 else 2  # the gathered weights, and the buffer that they arrive in
    gathered = copies * layer
    if not engine.fsdp.reshard_after_forward:
        gathered = shape.layers * layer + layer
    if engine.optimizer is None or engine.use_lora:
        return width * gathered
    return width * (gathered + root) + layer * (width + reduced + reduced // shards)


def head_bytes(engine: "TrainEngineConfig", shape: ModelShape, on_gpu: bool) -> int:
    """Logits of one chunk of tokens with their gradient, and the gradient of the head in float32 and as given."""
    logits, width = LOGITS_AT_ONCE[on_gpu], BYTES[engine.dtype]
    if (most := engine.mb_spec.token_limit) is not None:
        logits = min(logits, most * shape.vocab)
    trains_head = engine.optimizer is not None and not engine.use_lora
    gradient = shape.embedding * (FLOAT32 + (width if width != FLOAT32 else 0)) if trains_head else 0
    return 2 * FLOAT32 * logits + gradient


def export_bytes(engine: "TrainEngineConfig", shape: ModelShape) -> int:
    """The largest tensor, whole, as it is published or written to a checkpoint."""
    return (BYTES[engine.dtype] + BYTES[engine.master_dtype]) * shape.embedding
