"""What the sending of weights takes of the GPU of the first trainer rank: a copy of them if it has room, else the
buffers through which they come from main memory."""

from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers
from areal_like.config.experiment import GRPOConfig
from areal_like.config.number_text import size_text
from areal_like.models.model_shape import BYTES
from areal_like.serving.engines.registry import engine_spec
from areal_like.weights.transfer_path import (
    COLLECTIVE_MODES,
    NCCL_SLOT_BYTES,
    NCCL_SLOTS,
    SHARED_BUFFER_BYTES,
    SHARED_BUFFERS,
)
from launcher.plan.host import HostInfo
from launcher.plan.model_config import known_shape
from launcher.plan.rank_memory import trainer_bytes, usable_bytes

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


class SentCopy(NamedTuple):
    """`num_bytes`: of the first trainer rank's GPU."""

    stays_on_gpu: bool = False
    num_bytes: int = 0
    words: tuple[str, ...] = ()


def plan_sent_copy(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo, server_bytes: int
) -> SentCopy:
    """The copy is on the GPU if micro-batches of the wanted size fit beside it. `server_bytes`: what a server on the
    same GPU takes."""
    if allocation is None or not are_sent_between_gpus(config, allocation, host):
        return SentCopy()
    copy, need = copy_bytes(config, host), trainer_bytes(config, allocation, host)
    sizes = [gpu.memory_bytes for gpu in host.gpus if gpu.memory_bytes]
    if copy and need is not None and sizes and need.wanted + copy <= usable_bytes(min(sizes), server_bytes):
        words = f"trainer rank 0 keeps a copy of the weights for the servers on its GPU: {size_text(copy)}"
        return SentCopy(True, copy, (words,))
    buffers = _buffer_bytes(allocation)
    through = f", through buffers of {size_text(buffers)} of its GPU" if buffers else ""
    return SentCopy(False, buffers, (f"trainer rank 0 sends weights to the servers from main memory{through}",))


def are_sent_between_gpus(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> bool:
    """The path is the one that `choose_path` takes at the start."""
    if not isinstance(config, GRPOConfig) or config.actor.weight_update_mode not in COLLECTIVE_MODES:
        return False
    if allocation is None or allocation.rollout is None or not starts_servers(config):
        return False
    if not allocation.num_gpus or not allocation.actor:
        return False
    if allocation.shared_device:
        return allocation.rollout.world_size == 1
    return not any(gpu.is_part for gpu in host.gpus)


def copy_bytes(config: "BaseExperimentConfig", host: HostInfo) -> int:
    """In the precision of the trainer; 0 where the size of the model is not known."""
    assert isinstance(config, GRPOConfig)
    shape = known_shape(config.actor.path, host)
    return 0 if shape is None else shape.parameters() * BYTES[config.actor.dtype]


def _buffer_bytes(allocation: Allocation) -> int:
    """On a GPU that both use, the plan counts those of vLLM and SGLang with the room for new weights."""
    if not allocation.shared_device:
        return NCCL_SLOTS * NCCL_SLOT_BYTES
    assert allocation.rollout is not None
    return 0 if engine_spec(allocation.rollout.backend).receives_on_gpu else SHARED_BUFFERS * SHARED_BUFFER_BYTES
