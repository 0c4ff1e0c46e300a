"""Attention over slots, registered with transformers under a name of its own.

Three cases only: a whole prompt that begins at position 0, a piece of one behind those before it, and one new token per
sequence over its slot.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "areal_like_slots"
UNSUPPORTED_TERMS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Terms of other models' attention. One that is given and left out would make another model of it, silently."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **terms: Any,
) -> tuple[torch.Tensor, None]:
    """Shapes are [sequences, heads, tokens, size]; a whole prompt has no mask, which is true where a token may look."""
    for term in UNSUPPORTED_TERMS:
        if terms.get(term) is not None:
            raise ValueError(f"{type(module).__name__} attends with {term}, which the embedded engine does not do")
    sequences, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    if tokens == 1:
        # The heads that share keys stand where further tokens would: no key is copied for them.
        grouped = query.reshape(sequences, kv_heads, heads // kv_heads, size)
        mixed = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        return mixed.reshape(sequences, 1, heads, -1), None
    mixed = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=scaling,
        enable_gqa=heads != kv_heads,
    )
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, attend)
