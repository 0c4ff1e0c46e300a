"""Attention: which kernels there are and their time, how far ours is off, and how much memory it needs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from areal_like.training.attention import packed_attention
from tests.gpu.machine import device
from tests.gpu.models import sequences_of
from tests.gpu.report import Aim, Report, size_of
from tests.gpu.timing import measured

SHORT, LONG = [2048] * 8, [16384]
UNEVEN = [1500, 17, 17, 512, 1024, 255]
SMALL_SHORT, SMALL_LONG, SMALL_UNEVEN = [8] * 8, [64], [5, 9, 9, 30]
WINDOW = 100
OFF = {torch.float32: Aim(most=1e-4), torch.bfloat16: Aim(most=0.02)}
"""Greatest error of output and gradients, relative to their norm."""
LONG_MS = Aim(most=8)
"""Of one layer's forward and backward pass; flash attention 2 takes 12 on an H100."""
FLOAT32_GB = Aim(most=2)
"""The matrices of weights would take 17 GB."""
MATRIX = 8192
MATRIX_TFLOPS = Aim(least=650)


class Shape(NamedTuple):
    """Heads of Qwen3-0.6B."""

    heads: int = 16
    kv_heads: int = 8
    size: int = 128


Inputs = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values; each [1, heads, tokens, head size]."""
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The output is [1, tokens, heads, head size]."""


def kernels(report: Report) -> None:
    shape = Shape(4, 2, 16) if report.small else Shape()
    if torch.cuda.is_available():
        matrix_product(report)
    else:
        report.missing("matrix product in bfloat16", "there is no GPU")
    for dtype in OFF:
        for window in (None, 5 if report.small else WINDOW):
            error(report, shape, SMALL_UNEVEN if report.small else UNEVEN, dtype, window)
    short, long = (SMALL_SHORT, SMALL_LONG) if report.small else (SHORT, LONG)
    for lengths, aim in ((short, None), (long, LONG_MS)):
        timed(report, f"ours, {size_of(lengths)}", packed(lengths), inputs(shape, lengths, torch.bfloat16), aim)
    memory(report, size_of(long), packed(long), inputs(shape, long, torch.float32))
    for lengths in (short, long):
        name = size_of(lengths)
        for kernel, attention in others(lengths).items():
            if not torch.cuda.is_available():
                report.missing(f"{kernel}, {name}", "there is no GPU")
                continue
            try:
                timed(report, f"{kernel}, {name}", attention, inputs(shape, lengths, torch.bfloat16), None)
            except (ImportError, RuntimeError, TypeError, ValueError) as lack:
                report.missing(f"{kernel}, {name}", f"{type(lack).__name__}: {lack}".splitlines()[0][:200])


def matrix_product(report: Report) -> None:
    """What the device reaches at best; published peaks are for less power and heat than it has."""
    a, b = (torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device=device()) for _ in range(2))
    seconds = measured(lambda: a @ b, warm_up=5, counted=20).seconds
    report.figure("matrix product in bfloat16", 2 * MATRIX**3 / seconds / 1e12, "TFLOP/s", MATRIX_TFLOPS)


def inputs(shape: Shape, lengths: Sequence[int], dtype: torch.dtype) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    drawn = (torch.randn(1, count, sum(lengths), shape.size, generator=generator) for count in heads)
    q, k, v = (tensor.to(device(), dtype).requires_grad_() for tensor in drawn)
    return q, k, v


def packed(lengths: Sequence[int], window: int | None = None) -> Attention:
    """The trainer's attention, with the boundaries of a micro-batch of these sequences."""
    sequences = sequences_of(sorted(lengths), 10)
    settings: Any = sequences.micro_batch(range(len(sequences)), device()).attention_kwargs()

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return packed_attention(nn.Module(), q, k, v, None, q.shape[-1] ** -0.5, sliding_window=window, **settings)[0]

    return attention


def error(report: Report, shape: Shape, lengths: list[int], dtype: torch.dtype, window: int | None) -> None:
    lengths = sorted(lengths)
    given = inputs(shape, lengths, dtype)
    outs = with_gradients(packed(lengths, window), given)
    exact: list[Any] = [tensor.detach().cpu().double().requires_grad_() for tensor in given]
    expected = with_gradients(
        functools.partial(explicit, lengths=lengths, window=window), (exact[0], exact[1], exact[2])
    )
    off = max(((a.cpu().double() - b).norm() / b.norm()).item() for a, b in zip(outs, expected, strict=True))
    name = f"ours off in {str(dtype).removeprefix('torch.')}{'' if window is None else ', sliding window'}"
    report.limit(name, off, OFF[dtype], note="of the norm")


def with_gradients(attention: Attention, given: Inputs) -> list[Tensor]:
    out = attention(*given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), given)]


def explicit(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], window: int | None) -> Tensor:
    """By the definition, one sequence at a time."""
    each, outs = q.shape[1] // k.shape[1], []
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    for a, b, c in zip(*(tensor.split(list(lengths), 2) for tensor in (q, k, v)), strict=True):
        position = torch.arange(a.shape[2], device=a.device)
        behind = position[:, None] - position[None, :]
        seen = (behind >= 0) & (behind < (window or len(position)))
        scores = (a @ b.transpose(-1, -2) * a.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
        outs.append((scores.softmax(-1) @ c).transpose(1, 2))
    return torch.cat(outs, 1)


def timed(report: Report, name: str, attention: Attention, given: Inputs, aim: Aim | None) -> None:
    def work() -> None:
        out = attention(*given)
        torch.autograd.grad(out, given, torch.ones_like(out))

    report.figure(name, 1000 * measured(work).seconds, "ms", aim)


def memory(report: Report, size: str, attention: Attention, given: Inputs) -> None:
    """Of a forward and backward pass in float32 with fewer keys than queries."""

    def work() -> None:
        out = attention(*given)
        torch.autograd.grad(out, given, torch.ones_like(out))

    result = measured(work, warm_up=1, counted=1)
    report.figure(f"ours in float32, {size}", 1000 * result.seconds, "ms")
    if result.peak_gb is None:
        report.missing(f"ours in float32, {size}: memory", "there is no GPU")
    else:
        report.limit(f"ours in float32, {size}: memory", result.peak_gb, FLOAT32_GB, "GB")


def others(lengths: Sequence[int]) -> dict[str, Attention]:
    """Kernels by themselves, whether the trainer uses them or not."""
    named = {
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "torch's flash kernel": SDPBackend.FLASH_ATTENTION,
        "torch's memory-efficient kernel": SDPBackend.EFFICIENT_ATTENTION,
    }
    dense = {name: functools.partial(_dense, backend=backend, count=len(lengths)) for name, backend in named.items()}
    return {
        "varlen_attn": functools.partial(_varlen, lengths=lengths),
        "flash attention 3": functools.partial(_flash_3, lengths=lengths),
        **dense,
    }


def _dense(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend, count: int) -> Tensor:
    """Sequences of equal length as a batch."""
    a, b, c = (tensor[0].unflatten(1, (count, -1)).transpose(0, 1) for tensor in (q, k, v))
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(a, b, c, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)[None]


def _boundaries(lengths: Sequence[int]) -> Tensor:
    ends = torch.tensor(lengths).cumsum(0)
    return F.pad(ends, (1, 0)).to(torch.int32).to(device())


def _varlen(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    ends, longest = _boundaries(lengths), max(lengths)
    has_groups = "enable_gqa" in inspect.signature(varlen_attn).parameters
    more: dict[str, Any] = {"window_size": (-1, 0)} | ({"enable_gqa": True} if has_groups else {})
    a, b, c = (tensor[0].transpose(0, 1) for tensor in (q, k, v))
    out = varlen_attn(a, b, c, ends, ends, longest, longest, **more)
    assert isinstance(out, Tensor)
    return out[None]


def _flash_3(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    from flash_attn_interface import flash_attn_varlen_func  # type: ignore[import-not-found]

    ends, longest = _boundaries(lengths), max(lengths)
    given = (tensor[0].transpose(0, 1) for tensor in (q, k, v))
    out = flash_attn_varlen_func(*given, ends, ends, longest, longest, causal=True)
    whole: Tensor = out[0] if isinstance(out, tuple) else out
    return whole[None]
