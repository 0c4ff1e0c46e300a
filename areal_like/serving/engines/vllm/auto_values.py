"""Values of vLLM's `auto` keys: on a GPU fast for groups of samples, on a CPU what works."""

from math import ceil
from typing import Any

from areal_like.serving.engines.engine_site import GpuShare
from areal_like.serving.engines.external.auto_table import AutoTable

MEMORY = (0.9, "AReaL's default")
PROFILED = (None, "vLLM measures what is left")
ON_GPU: dict[str, tuple[Any, str]] = {
    "enforce_eager": (False, "on a GPU: compiled, and decoding replays CUDA graphs"),
    "enable_chunked_prefill": (True, "on a GPU: long prompts are computed between decoding steps"),
    "enable_prefix_caching": (True, "on a GPU: the samples of a group share one prompt; each weight update empties it"),
    "gpu_memory_utilization": MEMORY,
    "kv_cache_memory_bytes": PROFILED,
}
"""Key -> value and reason."""
ON_CPU: dict[str, tuple[Any, str]] = {
    "enforce_eager": (True, "on a CPU: compiling takes longer than it saves"),
    "enable_chunked_prefill": (False, "on a CPU: vLLM 0.32 crashes with it and seeded requests"),
    "enable_prefix_caching": (False, "on a CPU: AReaL's default"),
    "gpu_memory_utilization": MEMORY,
    "kv_cache_memory_bytes": (None, "on a CPU: by main memory"),
}
UNKNOWN_SHARE = 0.4
"""Of a GPU that a trainer shares, where the size of the model is not known."""

AUTOS = AutoTable("vllm", ON_GPU, ON_CPU)


def shared_gpu_values(share: GpuShare | None) -> dict[str, tuple[Any, str]]:
    """On a GPU that a trainer shares: the bytes of the cache, so that vLLM does not take all that is free. The fraction
    is what vLLM wants to be free at its start."""
    if share is None:
        return {"gpu_memory_utilization": (UNKNOWN_SHARE, "the trainer shares the GPU; the model's size is not known")}
    fraction = ceil(100 * share.total / share.gpu_bytes) / 100
    return {
        "gpu_memory_utilization": (min(1.0, fraction), "of the GPU that the trainer shares; free when vLLM starts"),
        "kv_cache_memory_bytes": (share.cache_bytes, f"{share.cache_tokens:,} tokens; {share.reason}"),
    }
