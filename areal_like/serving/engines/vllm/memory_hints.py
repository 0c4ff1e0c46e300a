"""What vLLM prints when the memory of a GPU does not suffice (0.32), and the keys that help."""

from areal_like.serving.engines.external.engine_log import MemoryHint

MEMORY_HINTS = (
    MemoryHint(
        r"Free memory on device .* is less than",
        "another process has taken the GPU's memory: lower vllm.gpu_memory_utilization, or end that process",
    ),
    MemoryHint(
        r"To serve at least one request|No available memory for the cache blocks",
        "lower vllm.max_model_len, or raise vllm.kv_cache_memory_bytes (if null, vllm.gpu_memory_utilization)",
    ),
    MemoryHint(
        r"out of memory|OutOfMemoryError",
        "lower vllm.kv_cache_memory_bytes (if null, vllm.gpu_memory_utilization) or vllm.max_num_seqs",
    ),
)
"""The first that matches counts."""
