"""Attention over packed sequences: each sees itself alone, and none is padded.

Sequences of one length that stand next to each other are computed as one batch, so that a micro-batch sorted by length
costs a few calls, however many sequences it has.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "areal_like_packed"

CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""What some models pass along, and torch's attention does not know."""


class Run(NamedTuple):
    """Neighbouring sequences of one length."""

    start: int
    num: int
    length: int


def runs_of(lengths: Sequence[int]) -> tuple[Run, ...]:
    """Where each stretch of equal lengths begins, how many sequences it has, and of which length."""
    runs, start = [], 0
    for length, members in groupby(lengths):
        num = len(list(members))
        runs.append(Run(start, num, length))
        start += num * length
    return tuple(runs)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    runs: tuple[Run, ...] = (),
    **unused: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: `query`, `key` and `value` are [1, heads, T, head size]."""
    for name in CHANGES_SCORES:
        if unused.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} changes its attention scores ({name}), which is not supported yet"
            )
    out = []
    for run in runs:
        part = slice(run.start, run.start + run.num * run.length)
        q, k, v = (
            tensor[0, :, part].reshape(tensor.shape[1], run.num, run.length, -1).transpose(0, 1)
            for tensor in (query, key, value)
        )
        is_windowed = sliding_window is not None and run.length > sliding_window
        mask = _window(run.length, sliding_window or 0, query.device) if is_windowed else None
        got = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        out.append(got.transpose(1, 2).flatten(0, 1))
    return torch.cat(out).unsqueeze(0), None


def _window(length: int, width: int, device: torch.device) -> Tensor:
    """Each position sees itself and the `width - 1` before it."""
    position = torch.arange(length, device=device)
    behind = position[:, None] - position[None, :]
    return (behind >= 0) & (behind < width)


# No mask is registered under this name, so that transformers makes none.
AttentionInterface.register(NAME, packed_attention)
