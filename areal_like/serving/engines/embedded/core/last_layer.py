"""The last layer of a prompt, without what nobody reads. The cache needs keys and values of all tokens, but the first
logits need the output of the last token alone: no queries and no feed-forward part of the others."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from areal_like.serving.engines.embedded.core.attention import attend
from areal_like.serving.engines.embedded.core.kv_cache import KVCache

FAMILIES = (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
PLAIN_LAYERS = frozenset(
    f"transformers.models.{module}.modeling_{module}.{name}DecoderLayer" for module, name in FAMILIES
)
"""Layers whose computation is the one below. Others may have the same parts and use them in another way, as Granite's
scale them: they compute all tokens."""


def shorten_last_layer(model: PreTrainedModel) -> None:
    """From now on passes over a KVCache, of which only the last logits are read, leave out what these do not need.
    Passes without one, as for the log-probabilities of a prompt, give the output of every token."""
    layers: Any = getattr(model.base_model, "layers", None)
    kind = type(layers[-1]) if layers else None
    if kind is None or f"{kind.__module__}.{kind.__qualname__}" not in PLAIN_LAYERS:
        return
    layer = layers[-1]
    attention = layer.self_attn
    if getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)) is not None:
        return  # `attend` refuses it
    whole = layer.forward

    def forward(hidden_states: Tensor, *, past_key_values: Any = None, **terms: Any) -> Tensor:
        if not isinstance(past_key_values, KVCache) or hidden_states.shape[1] == 1:
            output: Tensor = whole(hidden_states, past_key_values=past_key_values, **terms)
            return output
        normed = layer.input_layernorm(hidden_states)
        last = hidden_states[:, -1:] + _attended(layer.self_attn, normed, terms["position_embeddings"], past_key_values)
        fed: Tensor = layer.mlp(layer.post_attention_layernorm(last))
        return last + fed

    layer.forward = forward


def _attended(module: Any, normed: Tensor, rotation: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
    """The attention of the last token, which may attend to all."""
    sequences, tokens, _ = normed.shape
    query = module.q_proj(normed[:, -1:]).view(sequences, 1, -1, module.head_dim)
    key = module.k_proj(normed).view(sequences, tokens, -1, module.head_dim)
    value = module.v_proj(normed).view(sequences, tokens, -1, module.head_dim)
    if hasattr(module, "q_norm"):
        query, key = module.q_norm(query), module.k_norm(key)
    cos, sin = (part[:, :, None] for part in rotation)
    query, key = _rotated(query, cos[:, -1:], sin[:, -1:]), _rotated(key, cos, sin)
    keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), module.layer_idx)
    mixed, _ = attend(module, query.transpose(1, 2), keys, values, None, module.scaling)
    output: Tensor = module.o_proj(mixed.reshape(sequences, 1, -1))
    return output


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = states.shape[-1] // 2
    return states * cos + torch.cat((-states[..., half:], states[..., :half]), -1) * sin
