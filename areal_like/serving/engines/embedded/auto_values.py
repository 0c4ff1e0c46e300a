"""Values of the engine's `auto` keys. The KV cache holds all requests at maximum length, if memory suffices."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from areal_like.models.model_shape import BYTES, ModelShape
from areal_like.serving.engines.embedded.memory import EngineShape, working_bytes
from areal_like.serving.engines.engine_site import EngineBytes, EngineSite, GpuShare

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig

SHARE_OF_MAIN_MEMORY = 0.25
UNDECIDED = "auto"
"""The value where only the server can decide."""


def auto_values(config: "GRPOConfig", site: EngineSite) -> Iterator[tuple[str, Any, str]]:
    embedded = config.embedded
    on_gpu = site.on_gpu and embedded.device != "cpu"
    if embedded.dtype == "auto":
        yield "embedded.dtype", config.actor.dtype, "same as actor.dtype"
    if embedded.device == "auto":
        reason = "a GPU is assigned" if on_gpu else f"no GPU ({site.machine})"
        yield "embedded.device", "cuda" if on_gpu else "cpu", reason
    if embedded.enforce_eager == "auto":
        reason = "decode steps are captured as CUDA graphs" if on_gpu else "a CPU has no graphs to capture"
        yield "embedded.enforce_eager", not on_gpu, reason
    if embedded.kv_cache_tokens == "auto":
        tokens = _cache_tokens(config, site, on_gpu)
        if tokens is None:
            reason = "the size of the model or of the device's memory is unknown before the start"
            yield "embedded.kv_cache_tokens", UNDECIDED, f"decided by the server after loading: {reason}"
        else:
            yield "embedded.kv_cache_tokens", *tokens


def shared_gpu_values(share: GpuShare | None) -> dict[str, tuple[Any, str]]:
    return {} if share is None else {"kv_cache_tokens": (share.cache_tokens, share.reason)}


def count_bytes(config: "GRPOConfig", site: EngineSite, longest: int) -> EngineBytes:
    """What a server takes of a GPU: two sets of weights if they change."""
    assert site.model is not None, "the plan asks only where the model is known"
    embedded, width = config.embedded, weight_width(config)
    sizes = engine_shape(site.model, width)
    sets = 2 if site.trains and config.actor.weight_update_mode != "adapter" else 1
    captures = embedded.enforce_eager is not True
    working = working_bytes(sizes, embedded.max_running_requests, config.gconfig.n_samples, longest, captures)
    return EngineBytes(sets * site.model.parameters() * width, sets, working, sizes.cache_bytes_per_token)


def engine_shape(model: ModelShape, width: int) -> EngineShape:
    """`width`: bytes of a weight."""
    query, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return EngineShape(model.layers, model.hidden, query, kv, model.head_dim, model.inner, model.vocab, width)


def weight_width(config: "GRPOConfig") -> int:
    return BYTES.get(config.embedded.dtype, BYTES[config.actor.dtype])


def _cache_tokens(config: "GRPOConfig", site: EngineSite, on_gpu: bool) -> tuple[int, str] | None:
    """Enough for all requests at maximum length, limited by a share of the memory."""
    model, memory = site.model, site.gpu_bytes if on_gpu else site.memory_bytes
    if model is None or memory is None:
        return None
    longest = min(config.gconfig.max_tokens, config.embedded.context_length or model.max_positions or 1 << 30)
    tokens = config.embedded.max_running_requests * longest
    per_token = model.kv_per_token * weight_width(config)
    if on_gpu:
        taken = count_bytes(config, site, longest)
        per_token = taken.cache_per_token
        share = (0.5 if site.shares_gpu else 0.9) * memory - taken.weights - taken.working
        limit = "half of the GPU's memory" if site.shares_gpu else "nine tenths of the GPU's memory"
        limit += f" beside {taken.text}"
        if share < longest * per_token:
            return longest, f"one sequence, which does not fit into {limit}; lower embedded.max_running_requests"
    else:
        share = SHARE_OF_MAIN_MEMORY * memory / site.servers
        limit = "a quarter of main memory" + (" over all servers" if site.servers > 1 else "")
    max_tokens = max(longest, int(share) // per_token)
    if tokens <= max_tokens:
        return tokens, f"embedded.max_running_requests={config.embedded.max_running_requests} of {longest} tokens each"
    return max_tokens, f"fits into {limit}"
