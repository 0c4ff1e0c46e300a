"""Resolves `fsdp.reduce_gradients: auto`: when gradients are summed over the ranks. Without torch, as the plan uses it
too."""

from typing import TYPE_CHECKING

from areal_like.models.model_shape import BYTES

if TYPE_CHECKING:
    from areal_like.config.sections.train_engine import TrainEngineConfig

PER_MICRO_BATCH, PER_STEP = "per_micro_batch", "per_step"


def choose_reduction(engine: "TrainEngineConfig", num_shards: int, on_gpu: bool) -> tuple[str, str]:
    """The value, and the reason. `num_shards` are the ranks that share one copy of the model."""
    if engine.fsdp.reduce_gradients != "auto":
        return engine.fsdp.reduce_gradients, "as set"
    if num_shards == 1:
        return PER_STEP, "a rank has whole gradients, as it shares them with no other"
    if BYTES[engine.master_dtype] < BYTES[engine.grad_reduce_dtype]:
        reason = f"whole gradients in {engine.grad_reduce_dtype}: shards would be summed in {engine.master_dtype}"
        return PER_STEP, f"{reason} (master_dtype), and lose small ones"
    if not on_gpu:
        reason = "on a CPU whole gradients: communication costs more than memory"
        return PER_STEP, reason
    saved = f"1/{num_shards} of the gradients"
    return PER_MICRO_BATCH, f"each of {num_shards} ranks keeps {saved} while micro-batches accumulate"
