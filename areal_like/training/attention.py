"""Attention over packed sequences: each attends to itself only, without padding.

On a GPU variable-length kernels do this. Elsewhere neighbouring sequences of equal length are computed as one batch, so
that a micro-batch sorted by length takes few calls.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from areal_like.config.attention import choose_attention, installed_packages
from areal_like.config.sections.train_engine import TrainEngineConfig

REGISTERED_NAMES = {"sdpa": "areal_like_packed", "eager": "areal_like_packed_eager"}
"""`attn_impl` -> the name registered with transformers. Other implementations are those of transformers, which find the
sequence boundaries in `MicroBatch.attention_kwargs`, or in the positions."""

SCORE_MODIFIERS = ("s_aux", "position_bias")
"""Arguments of some models that change attention scores; not supported here."""

KERNEL_DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_SIZE = 256
"""The limit of torch's flash kernel."""

log = logging.getLogger(__name__)


def resolve_attention(config: TrainEngineConfig, section: str, device: torch.device) -> str:
    """The value of `attn_impl`; logs what `auto` resolves to, and why."""
    if config.attn_impl != "auto":
        return config.attn_impl
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    value, reason = choose_attention(config.dtype, gpus, installed_packages())
    log.info("%s.attn_impl is %s: %s", section, value, reason)
    return value


class LengthGroup(NamedTuple):
    """Neighbouring sequences of equal length."""

    start: int
    num: int
    length: int


def group_by_length(lengths: Sequence[int]) -> tuple[LengthGroup, ...]:
    """Groups of neighbouring equal lengths."""
    groups, start = [], 0
    for length, members in groupby(lengths):
        count = len(list(members))
        groups.append(LengthGroup(start, count, length))
        start += count * length
    return tuple(groups)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    length_groups: tuple[LengthGroup, ...] = (),
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    is_eager: bool = False,
    **unused: Any,
) -> tuple[Tensor, None]:
    """With the signature that transformers expects: `query`, `key` and `value` are [1, heads, T, head size]. `dropout`
    is 0 unless the model is in training."""
    _check_supported(module, unused)
    is_plain = is_eager or softcap is not None
    if not is_plain and not dropout and cu_seq_lens_q is not None and _flash_supports(query):
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return _flash_attention(q, k, v, cu_seq_lens_q, max_length_q, sliding_window, scaling).unsqueeze(0), None
    attend: Callable[[Tensor, Tensor, Tensor, int | None], Tensor]
    if is_plain:
        attend = partial(_eager_attention, scaling=scaling, dropout=dropout, softcap=softcap)
    else:
        attend = partial(_sdpa, scaling=scaling, dropout=dropout)
    out = []
    for group in length_groups:
        span = slice(group.start, group.start + group.num * group.length)
        q, k, v = (
            tensor[0, :, span].reshape(tensor.shape[1], group.num, group.length, -1).transpose(0, 1)
            for tensor in (query, key, value)
        )
        window = sliding_window if sliding_window is not None and group.length > sliding_window else None
        out.append(attend(q, k, v, window).transpose(1, 2).flatten(0, 1))
    return torch.cat(out).unsqueeze(0), None


def _check_supported(module: nn.Module, unused: dict[str, Any]) -> None:
    name = type(module).__name__
    for argument in SCORE_MODIFIERS:
        if unused.get(argument) is not None:
            raise ValueError(f"{name} changes its attention scores ({argument}), which is not supported yet")
    if not getattr(module, "is_causal", True):
        raise ValueError(f"{name} is not causal, which is not supported: it could not be sampled from")


def _flash_supports(query: Tensor) -> bool:
    """Whether torch's flash kernel supports it: half precision on an NVIDIA GPU from Ampere on."""
    if not query.is_cuda or query.dtype not in KERNEL_DTYPES or torch.version.cuda is None:
        return False
    size = query.shape[-1]
    return size <= MAX_HEAD_SIZE and size % 8 == 0 and torch.cuda.get_device_properties(query.device).major >= 8


def _flash_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, longest: int, window: int | None, scaling: float
) -> Tensor:
    """All sequences in one call; [T, heads, head size]."""
    window_size = (-1 if window is None else window - 1, 0)
    out = varlen_attn(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, window_size=window_size, enable_gqa=True
    )
    assert isinstance(out, Tensor)
    return out


def _sdpa(q: Tensor, k: Tensor, v: Tensor, window: int | None, *, scaling: float, dropout: float) -> Tensor:
    mask = None if window is None else causal_mask(q.shape[-2], window, q.device)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=True
    )


def _eager_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, *, scaling: float, dropout: float, softcap: float | None
) -> Tensor:
    """Explicit softmax attention: the reference for other implementations, and the one with a softcap."""
    length, queries_per_key = q.shape[-2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(queries_per_key, 1), v.repeat_interleave(queries_per_key, 1)
    scores = q @ k.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~causal_mask(length, window or length, q.device), float("-inf"))
    probabilities = F.dropout(scores.softmax(-1, dtype=torch.float32).to(q.dtype), dropout)
    return probabilities @ v


def causal_mask(length: int, width: int, device: torch.device) -> Tensor:
    """Each position attends to itself and the `width - 1` before it."""
    position = torch.arange(length, device=device)
    behind = position[:, None] - position[None, :]
    return (behind >= 0) & (behind < width)


# No masks are registered under these names, so that transformers builds none.
AttentionInterface.register(REGISTERED_NAMES["sdpa"], packed_attention)
AttentionInterface.register(REGISTERED_NAMES["eager"], partial(packed_attention, is_eager=True))
