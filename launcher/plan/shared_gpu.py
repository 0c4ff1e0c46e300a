"""Splits the memory of a GPU that one server and one trainer share: the server gets a fixed size and starts first, as
it measures what is free; the trainer has the rest."""

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import default_engine
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import plural
from areal_like.serving.engines.registry import engine_spec
from areal_like.serving.engines.spec import CONTEXT_BYTES, GpuShare
from launcher.plan.host import HostInfo
from launcher.plan.lengths import longest_sample, server_limit
from launcher.plan.memory import server_memory, size_text
from launcher.plan.micro_batch_limit import USABLE, TrainerBytes, trainer_bytes, usable_bytes
from launcher.plan.model_shape import BYTES, find_config, shape_of
from launcher.plan.plan import Resolved, ServerMemory
from launcher.plan.server_memory import embedded_bytes

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

BLOCK = 128
"""Tokens in a block of a cache, at most; one is never used."""
MOST_REQUESTS = 256
"""Sequences that a server generates at once, where its engine's key leaves it open."""


class SharedGpu(NamedTuple):
    """What the server takes, the resolved keys that make it so, and both as text."""

    server_bytes: int = 0
    resolved: tuple[Resolved, ...] = ()
    words: tuple[str, ...] = ()


def plan_shared_gpu(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> SharedGpu:
    """Empty where each has GPUs of its own. A value that is written decides, instead of the plan's."""
    if allocation is None or allocation.rollout is None or not allocation.shared_device:
        return SharedGpu()
    if not isinstance(config, GRPOConfig) or not starts_servers(config):
        return SharedGpu()
    spec = engine_spec(allocation.rollout.backend)
    gpu_bytes, need = host.gpus[0].memory_bytes if host.gpus else None, trainer_bytes(config, allocation, host)
    server = server_memory(config, allocation, host)
    share = None
    if gpu_bytes is not None and need is not None and server is not None:
        share = _share(config, allocation, host, server, need, gpu_bytes)
    values = {f"{spec.name}.{name}": value for name, value in spec.shared_gpu(share).items()}
    resolved = [Resolved(key, *value) for key, value in values.items() if value_of(config, key) == "auto"]
    written = value_of(config, spec.keys.memory_key) if spec.keys.memory_key else None
    server_bytes = 0 if share is None else share.total
    if gpu_bytes is not None and isinstance(written, float):
        server_bytes = ceil(written * gpu_bytes)
    words: list[str] = []
    if gpu_bytes is not None and server_bytes:
        left = size_text(max(0, usable_bytes(gpu_bytes, server_bytes)))
        text = (
            f"the server takes {size_text(server_bytes)} of the GPU and starts first; {left} are left for the trainer"
        )
        words.append(text)
    return SharedGpu(server_bytes, tuple(resolved), tuple(words))


def _share(
    config: GRPOConfig,
    allocation: Allocation,
    host: HostInfo,
    server: ServerMemory,
    need: TrainerBytes,
    gpu_bytes: int,
) -> GpuShare:
    """A cache for all requests at once, but less where the trainer needs the memory; at least the longest sequence."""
    assert allocation.rollout is not None
    spec, per_token = engine_spec(allocation.rollout.backend), server.kv_bytes_per_token
    weights, working = spec.weight_copies * server.weights, spec.working_bytes
    usable = int(gpu_bytes * USABLE) - 2 * CONTEXT_BYTES
    requests, longest = _requests(config, spec.keys.requests_key), longest_sample(config)
    shape = shape_of(find_config(config.actor.path, host)[0])
    if spec.keys is default_engine() and shape is not None:
        own = embedded_bytes(config, allocation, shape, BYTES[config.actor.dtype], longest)
        weights, working, per_token = own.weights, own.working, own.cache_per_token
    positions = shape.max_positions if shape else None
    limits = (server_limit(config, spec.name)[1] if spec.is_external else longest, positions)
    least_tokens = min(limit for limit in limits if limit) + BLOCK
    least, wanted = (
        weights + working + per_token * max(tokens, least_tokens) for tokens in (least_tokens, requests * longest)
    )
    total = min(wanted, max(usable // 2, usable - need.wanted))
    total = max(least, min(total, usable - need.least))
    tokens = (total - weights - working) // per_token
    for_all = f"{plural(requests, 'sequence')} of {longest} tokens"
    reason = f"{for_all} at once" if total >= wanted else f"{for_all} would need more"
    return GpuShare(gpu_bytes, weights, working, tokens * per_token, tokens, reason)


def _requests(config: GRPOConfig, key: str) -> int:
    """Samples in generation at once."""
    prompts = config.rollout.max_concurrent_rollouts or config.rollout.consumer_batch_size
    limit = value_of(config, key) if key else None
    return min(int(limit or MOST_REQUESTS), prompts * config.gconfig.n_samples)
