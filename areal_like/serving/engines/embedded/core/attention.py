"""The attention of forward passes over the KV cache."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "areal_like_slots"
UNSUPPORTED_TERMS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Terms of other models' attention. Ignoring one would silently compute another model."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **terms: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over slots, for transformers: a whole prompt from position 0 (no mask), a chunk after the chunks before
    it, or one new token per sequence. Shapes are [sequences, heads, tokens, size]; the mask is true where a token may
    attend."""
    for term in UNSUPPORTED_TERMS:
        if terms.get(term) is not None:
            raise ValueError(f"{type(module).__name__} attends with {term}, which the embedded engine does not support")
    sequences, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    if tokens == 1:
        # Heads that share keys take the place of further tokens, so that no key is copied.
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
