"""Values of SGLang's `auto` keys: on a GPU fast for groups of samples, on a CPU AReaL's defaults."""

from typing import Any

from areal_like.serving.engines.engine_site import CONTEXT_BYTES, GpuShare
from areal_like.serving.engines.external.auto_table import AutoTable

SHARED = "on a GPU: the samples of a group share one prompt; each weight update empties it"
IN_ORDER = "requests have priorities, which SGLang supports only with fcfs and lof"
CHUNK = 8192
UNKNOWN_SHARE = 0.3
"""Of a GPU that a trainer shares, where the size of the model is not known. Graphs and activations come on top."""
SPARE = 0.01
"""Of a shared GPU: max_total_tokens decides, so that a little more harms nothing."""
MEASURED = (None, "what fits into mem_fraction_static")
ON_GPU: dict[str, tuple[Any, str]] = {
    "disable_radix_cache": (False, SHARED),
    "chunked_prefill_size": (CHUNK, "on a GPU: long prompts are computed in parts, whose activations are small"),
    "mem_fraction_static": (0.9, "AReaL's default"),
    "max_total_tokens": MEASURED,
    "schedule_policy": ("fcfs", IN_ORDER),
}
"""Key -> value and reason."""
ON_CPU: dict[str, tuple[Any, str]] = {
    "disable_radix_cache": (True, "on a CPU: AReaL's default"),
    "chunked_prefill_size": (-1, "on a CPU: AReaL's default"),
    "mem_fraction_static": (0.2, "of main memory"),
    "max_total_tokens": MEASURED,
    "schedule_policy": ("fcfs", IN_ORDER),
}

AUTOS = AutoTable("sglang", ON_GPU, ON_CPU)


def shared_gpu_values(share: GpuShare | None) -> dict[str, tuple[Any, str]]:
    """On a GPU that a trainer shares: a number of tokens, so that SGLang does not fill its fraction, which is of the
    memory that is free at its start and holds weights and cache."""
    if share is None:
        return {"mem_fraction_static": (UNKNOWN_SHARE, "the trainer shares the GPU; the model's size is not known")}
    free = max(1, share.gpu_bytes - CONTEXT_BYTES)
    fraction = (share.weights + share.cache_bytes) / free + SPARE
    reason = "weights and cache, of what is free when SGLang starts"
    return {
        "mem_fraction_static": (min(1.0, round(fraction, 3)), reason),
        "max_total_tokens": (share.cache_tokens, share.reason),
    }
