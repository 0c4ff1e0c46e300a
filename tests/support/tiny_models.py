"""Tiny models with random weights, as HF directories, for tests of generation and training."""

import copy
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from areal_like.models.characters import write_tokenizer

M = TypeVar("M", bound=PreTrainedModel)

PAD_ID, EOS_ID, VOCAB = 0, 1, 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": PAD_ID,
    "bos_token_id": None,
    "eos_token_id": EOS_ID,
}
SPREAD_TIED, SPREAD_UNTIED = 5.0, 20.0
"""Random weights give nearly even chances; the last norm times this makes some tokens likely and others not. A tied
head prefers to repeat its input, so it gets less."""


def tiny_qwen3(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    """Head and embeddings are one tensor, as in the small models of that family."""
    return _made(Qwen3ForCausalLM, Qwen3Config, SPREAD_TIED, seed, {"tie_word_embeddings": True, **changes})


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Head and embeddings are two tensors."""
    return _made(LlamaForCausalLM, LlamaConfig, SPREAD_UNTIED, seed, {"tie_word_embeddings": False, **changes})


def tiny_mixture(seed: int = 0, **changes: Any) -> Qwen3MoeForCausalLM:
    """Each token uses two of four experts, in every layer."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "tie_word_embeddings": False}
    return _made(Qwen3MoeForCausalLM, Qwen3MoeConfig, SPREAD_UNTIED, seed, {**experts, **changes})


def write_tiny_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A Qwen3 with config, weights and a character tokenizer, as `from_pretrained` reads it."""
    model = tiny_qwen3(seed, **changes)
    model.save_pretrained(folder)
    write_tokenizer(folder, model.config.vocab_size)
    return folder


_KNOWN: dict[str, tuple[PreTrainedModel, torch.Tensor]] = {}
"""What was made so far, and the state of torch's random numbers after it: to copy a model is faster than to make it."""


def _made(model: type[M], config: type[PretrainedConfig], spread: float, seed: int, changes: dict[str, Any]) -> M:
    if is_in_torch_dispatch_mode():  # fake tensors, which cannot be kept for later
        torch.manual_seed(seed)
        return _spread(model(config(**{**SHAPE, **changes})), spread)
    key = f"{model.__name__} {seed} {sorted(changes.items())} {torch.get_default_dtype()} {torch.get_default_device()}"
    if key not in _KNOWN:
        torch.manual_seed(seed)
        made = _spread(model(config(**{**SHAPE, **changes})), spread)
        _KNOWN[key] = made, torch.get_rng_state()
    known, state = _KNOWN[key]
    torch.set_rng_state(state)
    return cast(M, copy.deepcopy(known))


def _spread(model: M, factor: float) -> M:
    with torch.no_grad():
        model.get_decoder().norm.weight.mul_(factor)
        for name, parameter in model.named_parameters():
            if name.endswith("_norm.weight"):
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    model.eval()
    return model
