"""Checks of what a device computes: each returns its measurements, and whether they are within the limits."""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from areal_like.config.sections.train_engine import CompileConfig
from areal_like.training import attention
from areal_like.training.attention import group_by_length, packed_attention
from areal_like.training.engine import TrainEngine
from areal_like.training.full_tensor import full_tensor
from areal_like.training.sequences import Sequences
from tests.gpu.models import TINY, engine_of, learn, on_cpu, sequences_of
from tests.support.training_runs import section

Result = dict[str, Any]

LENGTHS = [700, 33, 512, 33, 128, 257, 64, 900]
SMALL_LENGTHS = [17, 5, 32, 5, 9]
LIMITS = {"float32": (2e-4, 1e-3), "bfloat16": (0.15, 0.1)}
"""Precision -> maximum error of a log-probability, and of a gradient relative to its norm."""


def parity(device: torch.device, small: bool, dtype: str = "float32", **settings: Any) -> Result:
    """Log-probabilities and gradients of packed sequences, compared with transformers on the CPU."""
    sequences = sequences_of(SMALL_LENGTHS if small else LENGTHS, TINY.vocab_size)
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(TINY, dtype=torch.float32).save_pretrained(folder)
        expected, gradients = on_cpu(folder, sequences)
        with engine_of(TINY, folder, dtype=dtype, **settings) as engine:
            got = _in_order(engine, sequences)
            learn(engine, sequences)
            gaps = [(_gradient(engine, name) - one).norm() / one.norm() for name, one in gradients.items()]
    off, gap = (got - expected).abs(), max(gaps).item()
    most = LIMITS[dtype]
    return {
        "passed": bool(off.max() <= most[0] and gap <= most[1]),
        "logprob_off_max": off.max().item(),
        "logprob_off_mean": off.mean().item(),
        "gradient_off": gap,
        "limits": most,
    }


def bf16(device: torch.device, small: bool) -> Result:
    return parity(device, small, "bfloat16")


def compiled(device: torch.device, small: bool) -> Result:
    """Layers compiled one by one give the same; new lengths need no new compilation."""
    began = time.perf_counter()
    result = parity(device, small, compile=section(CompileConfig))
    result["took_with_compilation_s"] = time.perf_counter() - began
    return result


def varlen(device: torch.device, small: bool) -> Result:
    """Attention in the precision of its kernel, compared with an explicit version in float32."""
    lengths = [5, 9, 9, 30] if small else [3000, 17, 17, 1024, 4096, 511]
    heads, kv_heads, size = 4, 2, 64
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, n, sum(lengths), size, generator=generator) for n in (heads, kv_heads, kv_heads)]
    weight = torch.randn(1, sum(lengths), heads, size, generator=generator).to(device)
    borders = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=device)
    settings: dict[str, Any] = {
        "length_groups": group_by_length(lengths),
        "cu_seq_lens_q": borders,
        "max_length_q": max(lengths),
    }
    gaps, kernel = {}, False
    for window in (None, 100):
        outs = {}
        for way, precision in (("packed", dtype), ("by hand", torch.float32)):
            q, k, v = (tensor.to(device, precision).requires_grad_() for tensor in inputs)
            is_eager = way == "by hand"
            out = packed_attention(
                nn.Module(), q, k, v, None, size**-0.5, sliding_window=window, is_eager=is_eager, **settings
            )[0]
            torch.autograd.backward((out.float() * weight).sum())
            gradients = [tensor.grad for tensor in (q, k, v) if tensor.grad is not None]
            outs[way] = [out.detach().float(), *(gradient.float() for gradient in gradients)]
            kernel = kernel or (not is_eager and attention._flash_supports(q))
        pairs = zip(outs["packed"], outs["by hand"], strict=True)
        gaps[str(window)] = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
    most = 0.02 if dtype == torch.bfloat16 else 1e-5
    passed = max(gaps.values()) <= most and kernel == (device.type == "cuda")
    return {"passed": passed, "kernel": kernel, "off_by_window": gaps, "limit": most}


def _in_order(engine: TrainEngine, sequences: Sequences) -> Tensor:
    """Log-probabilities of the tokens in the loss, in the order of sequences."""
    micros = engine.micro_batches(sequences, range(len(sequences)))
    logprobs = sequences.scatter(micros, engine.logprobs(micros, 1.0))
    return torch.from_numpy(logprobs[sequences.target_mask])


def _gradient(engine: TrainEngine, name: str) -> Tensor:
    gradient = engine.model.get_parameter(name).grad
    assert gradient is not None
    return full_tensor(gradient).float().cpu()
