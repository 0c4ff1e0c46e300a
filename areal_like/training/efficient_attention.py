"""torch's memory-efficient attention over packed sequences, with sliding windows.

torch's own derivative of this kernel knows no windows, so that forward and backward are one operation here. The
compiler sees neither the lengths nor their number."""

from typing import Any

import torch
from torch import Tensor

aten: Any = torch.ops.aten

CAUSAL = 1
"""torch's number of the causal mask."""

ROUNDED_TO = 32
"""The kernel rounds the length of its logarithms of sums up to a multiple of it."""


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, window: int | None, scaling: float
) -> Tensor:
    """Of [T, heads, head size]. `ends` has the borders of the sequences, int32. The kernel needs a key for each query
    head."""
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1:
        key, value = key.repeat_interleave(queries_per_key, 1), value.repeat_interleave(queries_per_key, 1)
    parts = (part[None].contiguous() for part in (query, key, value))
    out: Tensor = _efficient_attention(*parts, ends, longest, window or 0, scaling)[0]
    return out[0]


@torch.library.custom_op("areal_like::efficient_attention", mutates_args=())
def _efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """Output, and the logarithm of the sum of each softmax, for the backward pass."""
    out, normalizer, *_ = aten._efficient_attention_forward(
        *(q, k, v, None, ends, ends, longest, longest, 0.0, CAUSAL, True),
        scale=scaling,
        window_size=window or None,
    )
    return out, normalizer


@torch.library.custom_op("areal_like::efficient_attention_backward", mutates_args=())
def _efficient_attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: Tensor,
    out: Tensor,
    normalizer: Tensor,
    longest: int,
    window: int,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    unused = torch.zeros((), dtype=torch.int64)  # the state of dropout
    gradients = aten._efficient_attention_backward(
        *(gradient, q, k, v, None, out, ends, ends, longest, longest, normalizer, 0.0, unused, unused, CAUSAL, False),
        scale=scaling,
        window_size=window or None,
    )
    return gradients[0], gradients[1], gradients[2]


@_efficient_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int, scaling: float
) -> tuple[Tensor, Tensor]:
    rounded = (longest + ROUNDED_TO - 1) // ROUNDED_TO * ROUNDED_TO
    normalizer = q.new_empty((ends.shape[0] - 1, q.shape[2], rounded), dtype=torch.float32)
    return q.new_empty((*q.shape[:3], v.shape[3])), normalizer


@_efficient_attention_backward.register_fake
def _(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.longest, ctx.window, ctx.scaling = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    gradients = _efficient_attention_backward(
        gradient.contiguous(), *ctx.saved_tensors, ctx.longest, ctx.window, ctx.scaling
    )
    return (*gradients, None, None, None, None)


_efficient_attention.register_autograd(_backward, setup_context=_setup_context)
