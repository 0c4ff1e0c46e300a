"""Warns where models, micro-batches or offloaded parts are larger than the memory that they are for."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.config.experiment import GRPOConfig
from areal_like.config.number_text import size_text
from areal_like.config.problems import Problem
from launcher.plan.host import HostInfo
from launcher.plan.lengths import longest_sample
from launcher.plan.micro_batch_limit import LIMIT, RECOMPUTE
from launcher.plan.plan import BatchPlan, Memory, Resolved
from launcher.plan.rank_memory import trainer_bytes, usable_bytes
from launcher.plan.sent_copy import SentCopy
from launcher.plan.shared_gpu import SharedGpu, plan_shared_gpu, sequences_wanted

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

SMALLER = (
    ("use_lora=true",),
    ("optimizer.offload=true",),
    ("optimizer.type=adam_bf16", "master_dtype=bfloat16"),
    ("fsdp.offload_params=true",),
)
"""What makes a rank smaller, with the least cost first."""


def room_warnings(
    allocation: Allocation,
    memory: Memory,
    config: "BaseExperimentConfig",
    host: HostInfo,
    shared: SharedGpu,
    sent: SentCopy,
) -> Iterator[Problem]:
    """Models that are larger than the memory of a device."""
    rank, server = memory.trainer_rank_bytes, memory.server
    if not allocation.num_gpus or (config.cluster.type != "local" and host.is_here):
        return
    size = _smallest_gpu(host)
    usable = max(0, usable_bytes(size, shared.server_bytes) - sent.num_bytes)
    has = size_text(size)
    if rank is not None and rank > usable:
        beside = f" beside the server's {size_text(shared.server_bytes)}" if shared.server_bytes else ""
        need = f"a trainer rank needs {size_text(rank)} before activations, and can use {size_text(usable)} of a GPU's"
        yield Problem("actor.backend", f"{need} {has}{beside}; {_smaller(config, allocation, host, size, shared)}")
    if server is not None and server.weight_sets * server.weights > size:
        twice = " with the next version beside them" if server.weight_sets > 1 else ""
        weights = f"a server's weights are {size_text(server.weight_sets * server.weights)}{twice}, and a GPU has {has}"
        yield Problem("rollout.backend", weights)
    away = sum(model.host + model.rounding + model.host_activations for model in memory.trainer) * (
        allocation.actor.world_size if allocation.actor else 0
    )
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
    sent: SentCopy,
    auto: dict[str, Resolved],
) -> Iterator[Problem]:
    """Micro-batches whose activations do not fit beside the models of a rank."""
    rank, per_token = memory.trainer_rank_bytes, max((m.activations_per_token for m in memory.trainer), default=0)
    tokens = batch.max_tokens_per_micro_batch or _whole_minibatch(batch)
    if not allocation.num_gpus or rank is None or tokens is None or (config.cluster.type != "local" and host.is_here):
        return
    left = usable_bytes(_smallest_gpu(host), shared.server_bytes) - sent.num_bytes - rank
    if left < 0 or tokens * per_token <= left:
        return  # no room for the models at all is another warning
    name, engine = trained_models(config)[0]
    chosen = auto.get(f"{name}.{RECOMPUTE}")
    is_recomputed = bool(chosen.value if chosen else engine.gradient_checkpointing)
    limit = "a micro-batch" if batch.max_tokens_per_micro_batch else "null, and a minibatch"
    needs = f"{limit} of {tokens:,} tokens takes {size_text(tokens * per_token)}, and {size_text(left)} of the GPU are"
    yield Problem(
        f"{name}.{LIMIT}", f"{needs} left beside the models; {_remedy(batch, name, left // per_token, is_recomputed)}"
    )


def serial_generation_warnings(
    config: "BaseExperimentConfig",
    allocation: Allocation,
    memory: Memory,
    shared: SharedGpu,
    auto: dict[str, Resolved],
) -> Iterator[Problem]:
    """Caches on a GPU that hold less than two of the longest sequences, where more are wanted at once."""
    server = memory.server
    if not allocation.num_gpus or allocation.rollout is None or server is None or not server.kv_bytes_longest_sample:
        return
    assert isinstance(config, GRPOConfig)
    keys = engine_keys(allocation.rollout.backend)
    key = keys.cache_tokens_key or keys.cache_bytes_key or keys.memory_key
    tokens = shared.cache_tokens
    longest = min(longest_sample(config), server.kv_bytes_longest_sample // server.kv_bytes_per_token)
    if tokens is None and keys.cache_tokens_key:
        value = auto[key].value if key in auto else value_of(config, key)
        tokens = value if isinstance(value, int) else None
    wanted = sequences_wanted(config, keys.requests_key)
    if tokens is None or wanted < 2 or tokens >= 2 * longest:
        return
    holds = f"the server's cache holds {tokens:,} tokens, one sequence of the greatest length ({longest:,})"
    slow = f"{holds}, and {wanted} are wanted at once: generation is nearly serial"
    each = size_text(longest * server.kv_bytes_per_token)
    freed = "; the trainer has the rest of the GPU, so make it smaller as well" if allocation.shared_device else ""
    yield Problem(key, f"{slow}; raise it ({each} for each sequence), or lower gconfig.max_new_tokens{freed}")


def _smaller(
    config: "BaseExperimentConfig", allocation: Allocation, host: HostInfo, size: int, shared: SharedGpu
) -> str:
    """What makes it fit, by the plan's own arithmetic."""
    trained = [name for name, engine in trained_models(config) if engine.optimizer is not None]
    remedies = [[f"{name}.{word}" for name in trained for word in remedy] for remedy in SMALLER]
    fitting = []
    for words in ([f"{key}=auto" for key in shared.written], *remedies):
        smaller = config
        for word in words:
            key, _, value = word.partition("=")
            smaller = _replaced(smaller, key.split("."), True if value == "true" else value)
        need, server = trainer_bytes(smaller, allocation, host), plan_shared_gpu(smaller, allocation, host).server_bytes
        if words and need is not None and need.least <= usable_bytes(size, server):
            fitting.append(" ".join(words))
    more = "use more GPUs for the trainer or a smaller model"
    return f"set {' or '.join(fitting)}, or {more}" if fitting else more


def _replaced(section: Any, names: list[str], value: Any) -> Any:
    """The same dataclass with another value at this path."""
    name, *rest = names
    return replace(section, **{name: _replaced(getattr(section, name), rest, value) if rest else value})


def _remedy(batch: BatchPlan, name: str, fitting: int, is_recomputed: bool) -> str:
    longest = batch.max_tokens_per_sample
    recompute = "" if is_recomputed else f"set {name}.{RECOMPUTE}=true, or "
    if longest is not None and fitting < longest:
        return f"{recompute}lower gconfig.max_new_tokens"
    return f"{recompute}lower it to {fitting:,} or set it to auto"


def _whole_minibatch(batch: BatchPlan) -> int | None:
    """At most that many tokens are in the share of one rank; None where their number is not known."""
    if batch.max_tokens_per_step is None:
        return None
    return batch.max_tokens_per_step // (batch.data_parallel_ranks * batch.optimizer_steps_per_step)


def _smallest_gpu(host: HostInfo) -> int:
    return min((gpu.memory_bytes or 1 << 60 for gpu in host.gpus), default=1 << 60)
