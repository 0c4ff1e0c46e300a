"""Tokens per second, model-FLOP utilisation and memory of whole training steps."""

import gc
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from transformers import Qwen3Config

from tests.gpu.models import QWEN3_0_6B, TINY, engine_of, learn, sequences_of

PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Part of a device's name -> peak in bfloat16 without sparsity, by its maker."""

PUBLISHED: dict[str, Any] = {"who": "prime-rl on one H100, a step of 16k tokens", "tokens_per_s": 11_900, "mfu": 0.111}
WARM_UP, COUNTED = 2, 4


def flops_per_token(shape: Qwen3Config, lengths: Sequence[int]) -> float:
    """Forward and backward: 6 for each parameter (a tied head once), and those of causal attention, which grow with
    the length. Recomputation to save memory is not counted. prime-rl counts the same."""
    head_dim, heads = shape.head_dim, shape.num_attention_heads
    kv_heads, hidden = shape.num_key_value_heads or heads, shape.hidden_size
    layer = 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * shape.intermediate_size
    weights = shape.num_hidden_layers * layer + shape.vocab_size * hidden
    mean_length = sum(length * length for length in lengths) / sum(lengths)
    return 6.0 * weights + 6.0 * shape.num_hidden_layers * heads * head_dim * mean_length


def peak_flops(name: str) -> float | None:
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def throughput(device: torch.device, small: bool, lengths: list[int], **settings: Any) -> dict[str, Any]:
    """Steps with random weights of the shape of Qwen3-0.6B: packing, forward, backward, clipping, AdamW."""
    shape = TINY if small else QWEN3_0_6B
    lengths = [max(2, length // 256) for length in lengths] if small else lengths
    sequences = sequences_of(lengths, shape.vocab_size)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    began = time.perf_counter()
    with engine_of(shape, dtype="bfloat16", lr=1e-6, gradient_clipping=1.0, **settings) as engine:
        loaded_s = time.perf_counter() - began
        for step in range(WARM_UP + COUNTED):
            began = time.perf_counter()
            update = engine.step(step, learn(engine, sequences))
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    step_s = median(seconds[WARM_UP:])
    tokens = sum(lengths)
    result: dict[str, Any] = {
        "passed": not update.is_skipped,
        "lengths": lengths,
        "tokens_per_s": tokens / step_s,
        "mfu": None if peak is None else tokens * flops_per_token(shape, lengths) / step_s / peak,
        "step_s": step_s,
        "first_step_s": seconds[0],
        "loaded_s": loaded_s,
        "loss": update.loss,
    }
    if device.type == "cuda":
        result["peak_memory_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        result["peak_reserved_gb"] = torch.cuda.max_memory_reserved(device) / 1e9
    if result["mfu"] is not None:
        result["times_published_mfu"] = result["mfu"] / PUBLISHED["mfu"]
    return result
