"""What SGLang prints when the memory of a GPU does not suffice (0.5.21), and the keys that help."""

from areal_like.serving.engines.external.engine_log import MemoryHint

MEMORY_HINTS = (
    MemoryHint(
        r"increase --mem-fraction-static|leave no GPU memory for the KV cache",
        "raise sglang.mem_fraction_static",
    ),
    MemoryHint(
        r"(?:Prefill|Decode) out of memory|runs out of memory",
        "raise sglang.max_total_tokens and sglang.mem_fraction_static, or lower sglang.max_running_requests",
    ),
    MemoryHint(
        r"out of memory|OutOfMemoryError",
        "lower sglang.mem_fraction_static, or sglang.chunked_prefill_size",
    ),
)
"""The first that matches counts."""
