"""Attention over packed sequences: each attends to itself only, without padding.

On a GPU kernels for packed sequences do this. Elsewhere, and with dropout or capped scores, neighbouring sequences of
equal length are computed as one batch, so that a micro-batch sorted by length takes few calls.
"""

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from areal_like.config.attention import beyond_kernels, choose_attention, installed_packages
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.training.attention_kernels import activate_flash_3, attend, choose_kernel, describe_kernels, is_gpu
from areal_like.training.length_groups import LengthGroups, group_by_length

REGISTERED_NAMES = {"sdpa": "areal_like_packed", "eager": "areal_like_packed_eager"}
"""`attn_impl` -> the name registered with transformers. Other implementations are those of transformers, which find the
sequence boundaries in `MicroBatch.attention_kwargs`, or in the positions."""

SCORE_MODIFIERS = ("s_aux", "position_bias")
"""Arguments of some models that change attention scores; not supported here."""

MAX_SCORES = 2**26
"""The most attention scores in the memory of a GPU at once."""

NO_GROUPS = group_by_length([])
AttendToBatch = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]
"""Queries, keys and values of sequences of equal length, [sequences, heads, length, head size], and the window."""

log = logging.getLogger(__name__)


def resolve_attention(config: TrainEngineConfig, section: str, device: torch.device, folder: Path) -> str:
    """The implementation for `attn_impl`; logs what `auto` resolves to, why, and the kernels of a GPU. `folder`
    contains the model."""
    value = config.attn_impl
    beyond = beyond_kernels(json.loads((folder / "config.json").read_text()), config.disable_dropout)
    if value == "auto":
        gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
        value, reason = choose_attention(config.dtype, gpus, installed_packages(), beyond)
        log.info("%s.attn_impl is %s: %s", section, value, reason)
    if value == "flash_attention_3" and not beyond:
        try:
            value = "sdpa" if activate_flash_3(device) else value  # which then uses it
        except Exception as fault:  # other versions of the package may raise anything
            value, reason = "sdpa", f"{type(fault).__name__}: {fault}"
            log.warning("%s.attn_impl: flash attention 3 is installed and does not work (%s): sdpa", section, reason)
    if value == "sdpa" and not beyond and (kernels := describe_kernels(device, getattr(torch, config.dtype))):
        log.info("%s: attention is computed by %s", section, kernels)
    return value


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
    length_groups: LengthGroups = NO_GROUPS,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    is_eager: bool = False,
    **unused: Any,
) -> tuple[Tensor, None]:
    """With the signature that transformers expects: `query`, `key` and `value` are [1, heads, T, head size]. `dropout`
    is 0 unless the model is in training."""
    _check_supported(module, unused)
    is_plain = is_eager or softcap is not None
    ends = None if is_plain or dropout else cu_seq_lens_q
    if ends is not None and (kernel := choose_kernel(query, value, length_groups, sliding_window)):
        bounds = (length_groups, ends, max_length_q, sliding_window)
        return attend(kernel, query, key, value, *bounds, scaling), None
    attend_to_batch: AttendToBatch
    if is_plain:
        attend_to_batch = partial(_eager_attention, scaling=scaling, dropout=dropout, softcap=softcap)
    else:
        attend_to_batch = partial(_sdpa, scaling=scaling, dropout=dropout)
    if is_gpu(query.device):
        in_chunks = partial(_attend_in_chunks, attend_to_batch, is_random=dropout > 0)
        return _attend_to_groups_uncompiled(in_chunks, query, key, value, length_groups, sliding_window), None
    return _attend_to_groups(attend_to_batch, query, key, value, length_groups, sliding_window), None


def _attend_to_groups(
    attend_to_batch: AttendToBatch, query: Tensor, key: Tensor, value: Tensor, groups: LengthGroups, window: int | None
) -> Tensor:
    """One group after the other; returns [1, T, heads, head size]."""
    out = []
    for group in groups:
        span = slice(group.start, group.start + group.num * group.length)
        q, k, v = (
            tensor[0, :, span].reshape(tensor.shape[1], group.num, group.length, -1).transpose(0, 1)
            for tensor in (query, key, value)
        )
        own_window = window if window is not None and group.length > window else None
        out.append(attend_to_batch(q, k, v, own_window).transpose(1, 2).flatten(0, 1))
    return torch.cat(out).unsqueeze(0)


_attend_to_groups_uncompiled = torch.compiler.disable(_attend_to_groups)  # type: ignore[no-untyped-call]
"""The compiler would put the lengths into its code, and compile each micro-batch anew."""


def _attend_in_chunks(
    attend_to_batch: AttendToBatch, q: Tensor, k: Tensor, v: Tensor, window: int | None, *, is_random: bool
) -> Tensor:
    """Some queries at a time, whose scores are computed again in the backward pass, so that memory does not grow with
    the square of the length."""
    num, heads, length, _ = q.shape
    step = max(1, MAX_SCORES // (num * heads * length))
    if step >= length:
        return attend_to_batch(q, k, v, window)
    out = []
    for start in range(0, length, step):
        end = min(start + step, length)
        seen = slice(0 if window is None else max(0, start - window + 1), end)
        parts = (q[:, :, start:end], k[:, :, seen], v[:, :, seen], window or length)
        chunk = checkpoint(attend_to_batch, *parts, use_reentrant=False, preserve_rng_state=is_random)
        assert isinstance(chunk, Tensor)
        out.append(chunk)
    return torch.cat(out, 2)


def _check_supported(module: nn.Module, unused: dict[str, Any]) -> None:
    name = type(module).__name__
    for argument in SCORE_MODIFIERS:
        if unused.get(argument) is not None:
            raise ValueError(f"{name} changes its attention scores ({argument}), which is not supported yet")
    if not getattr(module, "is_causal", True):
        raise ValueError(f"{name} is not causal, which is not supported: it could not be sampled from")


def _sdpa(q: Tensor, k: Tensor, v: Tensor, window: int | None, *, scaling: float, dropout: float) -> Tensor:
    if is_gpu(q.device):
        # Kernels that accept masks or float32 want as many keys as queries.
        k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) for tensor in (k, v))
    mask = None if window is None else causal_mask(q.shape[-2], k.shape[-2], window, q.device)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=True
    )


def _eager_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int | None, *, scaling: float, dropout: float, softcap: float | None
) -> Tensor:
    """Explicit softmax attention: the reference for other implementations, and the one with a softcap."""
    num_queries, num_keys, queries_per_key = q.shape[-2], k.shape[-2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(queries_per_key, 1), v.repeat_interleave(queries_per_key, 1)
    scores = q @ k.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    mask = causal_mask(num_queries, num_keys, window or num_keys, q.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    probabilities = F.dropout(scores.softmax(-1, dtype=torch.float32).to(q.dtype), dropout)
    return probabilities @ v


def causal_mask(num_queries: int, num_keys: int, width: int, device: torch.device) -> Tensor:
    """Each position attends to itself and the `width - 1` before it. Queries are at the last positions of the keys."""
    keys = torch.arange(num_keys, device=device)
    behind = keys[num_keys - num_queries :, None] - keys[None, :]
    return (behind >= 0) & (behind < width)


# No masks are registered under these names, so that transformers builds none.
AttentionInterface.register(REGISTERED_NAMES["sdpa"], packed_attention)
AttentionInterface.register(REGISTERED_NAMES["eager"], partial(packed_attention, is_eager=True))
