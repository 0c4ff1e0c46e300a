"""Splits the memory of a GPU that one server and one trainer share: the server gets a fixed size and starts first, as
it measures what is free; the trainer has the rest."""

from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers
from areal_like.config.dotted_path import value_of
from areal_like.config.experiment import GRPOConfig
from areal_like.config.number_text import size_text
from areal_like.config.problems import plural
from areal_like.config.sections.engines.base import EngineKeys
from areal_like.serving.engines.engine_site import CONTEXT_BYTES, GpuShare
from areal_like.serving.engines.registry import engine_spec
from areal_like.serving.engines.spec import EngineSpec
from launcher.plan.engine_values import engine_site
from launcher.plan.host import HostInfo
from launcher.plan.lengths import CACHE_BLOCK, least_cache_tokens, longest_sample
from launcher.plan.memory import server_memory
from launcher.plan.plan import Resolved, ServerMemory
from launcher.plan.rank_memory import USABLE, TrainerBytes, trainer_bytes, usable_bytes
from launcher.plan.sent_copy import are_sent_between_gpus, copy_bytes
from launcher.plan.staging import excludes_working, staged_bytes

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

MOST_REQUESTS = 256
"""Sequences that a server generates at once, where its engine's key leaves it open."""


class SharedGpu(NamedTuple):
    """What the server takes, the resolved keys that make it so, and both as text."""

    server_bytes: int = 0
    resolved: tuple[Resolved, ...] = ()
    words: tuple[str, ...] = ()
    cache_tokens: int | None = None
    """Of the server's cache, where the plan knows it."""
    written: tuple[str, ...] = ()
    """The keys that decide what the server takes, instead of the plan."""
    staged_bytes: int = 0
    """What it takes for new weights until they are applied; 0 where these go through main memory."""
    trainer_share: float | None = None
    """The fraction of the GPU that the trainer may take, so that these have room."""


def plan_shared_gpu(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> SharedGpu:
    """Empty where each has GPUs of its own. A value that is written decides, instead of the plan's."""
    if allocation is None or allocation.rollout is None or not allocation.shared_device:
        return SharedGpu()
    if not isinstance(config, GRPOConfig) or not starts_servers(config):
        return SharedGpu()
    spec = engine_spec(allocation.rollout.backend)
    gpu_bytes, need = host.gpus[0].memory_bytes if host.gpus else None, trainer_bytes(config, allocation, host)
    server = server_memory(config, allocation, host)
    if need is not None and are_sent_between_gpus(config, allocation, host):
        need = need._replace(wanted=need.wanted + copy_bytes(config, host))
    share = None
    if gpu_bytes is not None and need is not None and server is not None:
        share = _share(config, allocation, host, server, need, gpu_bytes, staged_bytes(config, allocation, host))
    planned = share
    share = planned and _with_written_cache(config, spec.keys, planned)
    fraction = _written(config, spec.keys.memory_key)
    fills_fraction = gpu_bytes is not None and isinstance(fraction, float) and share == planned
    if share is not None and need is not None and gpu_bytes is not None and share.staged:
        taken = _filled(spec, fraction, gpu_bytes) + share.staged if fills_fraction else share.total
        share = share if need.least <= usable_bytes(gpu_bytes, taken) else share._replace(staged=0)
    values = {f"{spec.name}.{name}": value for name, value in spec.shared_gpu(share).items()}
    server_bytes, cache_tokens = (0, None) if share is None else (share.total, share.cache_tokens)
    staged = 0 if share is None else share.staged
    if fills_fraction and gpu_bytes is not None:
        # The engine fills what is written: a planned cache would take its place.
        values = {key: value for key, value in values.items() if key not in _cache_keys(spec.keys)}
        server_bytes, cache_tokens = _filled(spec, fraction, gpu_bytes) + staged, None
    resolved = [Resolved(key, *value) for key, value in values.items() if value_of(config, key) == "auto"]
    words: list[str] = []
    trainer_share = None
    if gpu_bytes is not None and server_bytes:
        left = size_text(max(0, usable_bytes(gpu_bytes, server_bytes)))
        text = (
            f"the server takes {size_text(server_bytes)} of the GPU and starts first; {left} are left for the trainer: "
            f"{USABLE:.0%} of {size_text(gpu_bytes)} can be used, and the driver takes {size_text(CONTEXT_BYTES)} for "
            "each of the two processes"
        )
        words.append(text)
        if staged:
            trainer_share = floor(1000 * (1 - (server_bytes + 2 * CONTEXT_BYTES) / gpu_bytes)) / 1000
    keys = dict.fromkeys((spec.keys.memory_key, *_cache_keys(spec.keys)))
    written = tuple(key for key in keys if _written(config, key) is not None)
    return SharedGpu(server_bytes, tuple(resolved), tuple(words), cache_tokens, written, staged, trainer_share)


def _filled(spec: EngineSpec, fraction: float, gpu_bytes: int) -> int:
    """What an engine takes that fills this fraction of a GPU."""
    return ceil(fraction * gpu_bytes) + (spec.working_bytes if excludes_working(spec) else 0)


def _cache_keys(keys: EngineKeys) -> list[str]:
    return [key for key in (keys.cache_bytes_key, keys.cache_tokens_key) if key]


def _written(config: GRPOConfig, key: str) -> Any:
    """None where nothing sets it."""
    value = value_of(config, key) if key else None
    return None if value == "auto" else value


def _with_written_cache(config: GRPOConfig, keys: EngineKeys, share: GpuShare) -> GpuShare:
    per_token = share.cache_bytes // share.cache_tokens
    if (size := _written(config, keys.cache_bytes_key)) is not None:
        return share._replace(cache_bytes=size, cache_tokens=size // per_token)
    if (tokens := _written(config, keys.cache_tokens_key)) is not None:
        return share._replace(cache_bytes=tokens * per_token, cache_tokens=tokens)
    return share


def _share(
    config: GRPOConfig,
    allocation: Allocation,
    host: HostInfo,
    server: ServerMemory,
    need: TrainerBytes,
    gpu_bytes: int,
    staged: int,
) -> GpuShare:
    """A cache for all requests at once, but less where the trainer needs the memory; at least the longest sequence.
    `staged`: for new weights, if they fit beside it."""
    assert allocation.rollout is not None
    spec, per_token = engine_spec(allocation.rollout.backend), server.kv_bytes_per_token
    weights, working = server.weight_sets * server.weights, spec.working_bytes
    usable = int(gpu_bytes * USABLE) - 2 * CONTEXT_BYTES
    requests, longest = sequences_wanted(config, spec.keys.requests_key), longest_sample(config)
    site = engine_site(config, allocation, host)
    if spec.count_bytes is not None and site.model is not None:
        own = spec.count_bytes(config, site, longest)
        weights, working, per_token = own.weights, own.working, own.cache_per_token
    positions = site.model.max_positions if site.model else None
    least_tokens = min(longest, positions or longest) + CACHE_BLOCK
    if spec.is_external:
        least_tokens = least_cache_tokens(config, spec.name, positions)
    if weights + working + per_token * least_tokens + staged > usable - need.least:
        staged = 0
    fixed = weights + working + staged
    least, wanted = (fixed + per_token * max(tokens, least_tokens) for tokens in (least_tokens, requests * longest))
    total = min(wanted, max(usable // 2, usable - need.wanted))
    total = max(least, min(total, usable - need.least))
    tokens = (total - fixed) // per_token
    for_all = f"{plural(requests, 'sequence')} of {longest} tokens"
    reason = f"{for_all} at once" if total >= wanted else f"{for_all} would need more, {tokens // longest} fit at once"
    if requests * longest < least_tokens:
        reason = f"a sequence of {least_tokens - CACHE_BLOCK} tokens, the longest that it accepts"
    return GpuShare(gpu_bytes, weights, working, tokens * per_token, tokens, reason, staged)


def sequences_wanted(config: GRPOConfig, key: str) -> int:
    """Samples in generation at once. `key`: the limit of the engine."""
    prompts = config.rollout.max_concurrent_rollouts or config.rollout.consumer_batch_size
    limit = value_of(config, key) if key else None
    return min(int(limit or MOST_REQUESTS), prompts * config.gconfig.n_samples)
