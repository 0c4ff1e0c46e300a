"""A causal model of transformers, loaded or made, and wrapped so that it takes packed tokens and gives
log-probabilities."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from areal_like.algorithms.logprobs import token_logprobs
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.train_engine import TrainEngineConfig
from areal_like.training.attention import NAME
from areal_like.training.sequences import MicroBatch

CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "attn_logit_softcapping")
"""Entries of a model's configuration by which its logits are not the plain product of hidden states and head."""


class PackedModel(nn.Module):
    """Packed tokens in, log-probability and entropy of every prediction that counts out: the logits of a whole
    micro-batch are never in memory at once."""

    def __init__(self, causal: PreTrainedModel) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, micro: MicroBatch, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        hidden_T = self.causal.base_model(
            input_ids=micro.input_ids_T[None], position_ids=micro.position_ids_T[None], runs=micro.runs, use_cache=False
        ).last_hidden_state[0]
        head = output_head(self.causal).weight
        logprobs_P, entropy_P = token_logprobs(
            hidden_T[micro.predicts_P], head, micro.targets_P, temperature, with_entropy
        )
        # FSDP hangs its hooks on what a module returns, and warns where that is a view.
        return logprobs_P.clone(), None if entropy_P is None else entropy_P.clone()


def load_model(config: TrainEngineConfig, where: str, folder: Path, seed: int | None) -> PreTrainedModel:
    """The model in `folder`, in the precision in which its weights are held: with its own weights, or with random ones
    by `seed`. `where` is the section of `config`."""
    dtype = getattr(torch, config.dtype if config.optimizer is None else config.master_dtype)
    # The others find the borders of packed sequences in the positions by themselves.
    attention = NAME if config.attn_impl in ("auto", "sdpa") else config.attn_impl
    shared: dict[str, Any] = {"attn_implementation": attention, "trust_remote_code": config.trust_remote_code}
    described = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=config.trust_remote_code)
    _check_head(described.get_text_config(), where, config.path)
    if seed is not None:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            made: Any = AutoModelForCausalLM.from_config(described, dtype=dtype, **shared)  # type: ignore[no-untyped-call]
            model: PreTrainedModel = made
    else:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=described, dtype=dtype, local_files_only=True, output_loading_info=True, **shared
        )
        model, found = loaded
        if missing := sorted(found["missing_keys"]):
            raise problem(
                f"{where}.path",
                f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}; take a complete "
                f"checkpoint, or {where}.init_from_scratch=true for random weights",
            )
    _check_head(model.config.get_text_config(), where, config.path)
    if output_head(model).bias is not None:
        raise problem(f"{where}.path", f"{config.path} has an output head with a bias, which is not supported")
    if config.disable_dropout:
        remove_dropout(model)
    return model


def output_head(model: PreTrainedModel) -> nn.Linear:
    """What makes logits of hidden states."""
    head: nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def _check_head(described: Any, where: str, path: str) -> None:
    for name in CHANGES_LOGITS:
        if getattr(described, name, None) not in (None, 1.0):
            raise problem(f"{where}.path", f"{path} changes its logits ({name} in its config.json): not supported yet")


def remove_dropout(model: nn.Module) -> None:
    """Every probability of dropout becomes 0, also those that attention passes on as a number."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def problem(key: str, message: str) -> ConfigError:
    return ConfigError([Problem(key, message)])
