"""Warns where models, micro-batches or offloaded parts are larger than the memory that they are for, and where a
learning rate is one for a much smaller model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, trained_models
from areal_like.config.problems import Problem
from launcher.plan.host import HostInfo
from launcher.plan.memory import count_text, size_text
from launcher.plan.micro_batch_limit import LIMIT, usable_bytes
from launcher.plan.plan import BatchPlan, Memory
from launcher.plan.shared_gpu import SharedGpu

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

SMALLER = (
    "{0}.use_lora=true, {0}.optimizer.offload=true, or {0}.optimizer.type=adam_bf16 with {0}.master_dtype=bfloat16 "
    "need less"
)
LARGE_MODEL = 50_000_000
HIGH_RATES = {"actor": 5e-5, "critic": 1e-4}
"""Learning rates above which reinforcement learning of all weights of a large model mostly diverges."""


def room_warnings(
    allocation: Allocation, memory: Memory, config: "BaseExperimentConfig", host: HostInfo, shared: SharedGpu
) -> Iterator[Problem]:
    """Models that are larger than the memory of a device."""
    rank, server = memory.trainer_rank_bytes, memory.server
    if not allocation.num_gpus or (config.cluster.type != "local" and host.is_here):
        return
    size = _smallest_gpu(host)
    left = size - shared.server_bytes
    has = size_text(size)
    if rank is not None and rank > left:
        beside = f", of which the server takes {size_text(shared.server_bytes)}" if shared.server_bytes else ""
        need = f"a trainer rank needs {size_text(rank)} before activations, and a GPU has {has}{beside}"
        yield Problem("actor.backend", f"{need}; {SMALLER.format(trained_models(config)[0][0])}")
    if server is not None and server.weights > size:
        weights = f"a server's weights are {size_text(server.weights)}, and a GPU has {has}"
        yield Problem("rollout.backend", weights)
    away = sum(model.host for model in memory.trainer) * (allocation.actor.world_size if allocation.actor else 0)
    if host.memory_bytes and away > host.memory_bytes:
        has = size_text(host.memory_bytes)
        offloaded = f"{size_text(away)} are offloaded to host memory, and {host.machine.place} has {has}"
        yield Problem("actor.path", offloaded)


def micro_batch_warnings(
    allocation: Allocation,
    memory: Memory,
    batch: BatchPlan,
    config: "BaseExperimentConfig",
    host: HostInfo,
    shared: SharedGpu,
) -> Iterator[Problem]:
    """Micro-batches whose activations do not fit beside the models of a rank."""
    rank, per_token = memory.trainer_rank_bytes, max((m.activations_per_token for m in memory.trainer), default=0)
    tokens = batch.max_tokens_per_micro_batch or _whole_minibatch(batch)
    if not allocation.num_gpus or rank is None or tokens is None or (config.cluster.type != "local" and host.is_here):
        return
    left = usable_bytes(_smallest_gpu(host), shared.server_bytes) - rank
    if left < 0 or tokens * per_token <= left:
        return  # no room for the models at all is another warning
    name = trained_models(config)[0][0]
    limit = "a micro-batch" if batch.max_tokens_per_micro_batch else "null, and a minibatch"
    needs = f"{limit} of {tokens:,} tokens takes {size_text(tokens * per_token)}, and {size_text(left)} of the GPU are"
    yield Problem(f"{name}.{LIMIT}", f"{needs} left beside the models; {_remedy(batch, name, left // per_token)}")


def learning_rate_warnings(config: "BaseExperimentConfig", memory: Memory) -> Iterator[Problem]:
    """Rates of a tiny model, kept in a file whose actor is another one."""
    if not generates(config):
        return
    sizes = {model.model: model for model in memory.trainer}
    for name, engine in trained_models(config):
        size, most = sizes.get(name), HIGH_RATES.get(name)
        if size is None or most is None or engine.optimizer is None or size.trainable < LARGE_MODEL:
            continue
        if engine.optimizer.lr > most:
            count = count_text(size.trainable)
            reason = f"{engine.optimizer.lr:g} is high for a model of {count} parameters; 1e-6 to 2e-5 are usual"
            yield Problem(f"{name}.optimizer.lr", reason)


def _remedy(batch: BatchPlan, name: str, fitting: int) -> str:
    longest = batch.max_tokens_per_sample
    if longest is not None and fitting < longest:
        return f"set {name}.gradient_checkpointing=true, or lower gconfig.max_new_tokens"
    return f"lower it to {fitting:,} or set it to auto, or set {name}.gradient_checkpointing=true"


def _whole_minibatch(batch: BatchPlan) -> int | None:
    """At most that many tokens are in the share of one rank; None where their number is not known."""
    if batch.max_tokens_per_step is None:
        return None
    return batch.max_tokens_per_step // (batch.data_parallel_ranks * batch.optimizer_steps_per_step)


def _smallest_gpu(host: HostInfo) -> int:
    return min((gpu.memory_bytes or 1 << 60 for gpu in host.gpus), default=1 << 60)
