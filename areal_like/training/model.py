"""Loads a transformers model, and wraps it to map packed tokens to log-probabilities, or with a value head to
values."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from areal_like.algorithms.logprobs import token_logprobs
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.data.user_code import config_error
from areal_like.training.attention import REGISTERED_NAMES
from areal_like.training.sequences import MicroBatch

LOGIT_SCALES = ("logit_scale", "logits_scaling")
"""Configuration entries that scale logits; not supported."""


VALUE_HEAD = "score"
"""transformers' name of the head that gives one number per token."""


class PackedModel(nn.Module):
    """Maps packed tokens to log-probability and entropy of every target token, or to the value of the state before it.
    The logits of a whole micro-batch are never in memory at once."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.predicts_values = value_head(model) is not None
        self.softcap: float | None = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def forward(self, micro: MicroBatch, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        hidden_T = self.model.base_model(
            input_ids=micro.input_ids_T[None],
            position_ids=micro.position_ids_T[None],
            use_cache=False,
            **micro.attention_kwargs(),
        ).last_hidden_state[0]
        hidden_P = hidden_T[micro.predicts_P]
        if (score := value_head(self.model)) is not None:
            return (hidden_P.float() @ score.weight[0].float()).clone(), None
        head = output_head(self.model).weight
        return token_logprobs(hidden_P, head, micro.targets_P, temperature, with_entropy, softcap=self.softcap)


def load_model(
    config: TrainEngineConfig,
    section: str,
    folder: Path,
    seed: int | None,
    attention: str = "sdpa",
    is_empty: bool = False,
) -> PreTrainedModel:
    """The model in `folder`, with weights in the dtype of their storage: its own weights, random ones with `seed`, or
    none yet (`is_empty`, for the meta device). `section` is the key of `config`, `attention` its resolved
    `attn_impl`."""
    is_frozen = config.optimizer is None or config.use_lora
    dtype = getattr(torch, config.dtype if is_frozen else config.master_dtype)
    code_settings = {"trust_remote_code": config.trust_remote_code}
    shared: dict[str, Any] = {"attn_implementation": REGISTERED_NAMES.get(attention, attention), **code_settings}
    model_config = AutoConfig.from_pretrained(folder, local_files_only=True, **code_settings)
    _check_head(model_config.get_text_config(), section, config.path)
    if config.debug is not None and config.debug.num_layers is not None:
        _truncate_layers(model_config.get_text_config(), config.debug.num_layers)
    if not config.moe_use_grouped_mm:
        shared["experts_implementation"] = "eager"
    kind: Any = AutoModelForCausalLM
    if config.is_critic:
        kind, model_config.num_labels = AutoModelForSequenceClassification, 1
    if seed is not None or is_empty:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed or 0)
            model: PreTrainedModel = kind.from_config(model_config, dtype=dtype, **shared)
        if config.is_critic:
            _zero_value_head(model)
    else:
        with _quiet_transformers():
            model, loading_info = kind.from_pretrained(
                folder, config=model_config, dtype=dtype, local_files_only=True, output_loading_info=True, **shared
            )
        missing = set(loading_info["missing_keys"])
        if config.is_critic and config.optimizer is not None and f"{VALUE_HEAD}.weight" in missing:
            _zero_value_head(model)
            missing.discard(f"{VALUE_HEAD}.weight")
        if missing:
            raise config_error(
                f"{section}.path",
                f"{folder} lacks {len(missing)} of the model's weights, such as {min(missing)}; use a complete "
                f"checkpoint, or {section}.init_from_scratch=true for random weights",
            )
    model.config.architectures = [type(model).__name__]
    _check_head(model.config.get_text_config(), section, config.path)
    if not config.is_critic and output_head(model).bias is not None:
        raise config_error(f"{section}.path", f"{config.path} has an output head with a bias, which is not supported")
    if config.disable_dropout:
        remove_dropout(model)
    _check_dropout(model, attention, section)
    return model


def _truncate_layers(model_config: Any, num_layers: int) -> None:
    """Keeps the first `num_layers`. Lists with an entry per layer are truncated as well."""
    before, model_config.num_hidden_layers = (
        model_config.num_hidden_layers,
        min(num_layers, model_config.num_hidden_layers),
    )
    for name, value in vars(model_config).items():
        if isinstance(value, list) and len(value) == before:
            setattr(model_config, name, value[: model_config.num_hidden_layers])


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silences warnings about missing weights: these are expected, or an error raised here."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def value_head(model: PreTrainedModel) -> nn.Linear | None:
    """The linear layer from hidden states to values; None for a model that predicts tokens."""
    return getattr(model, VALUE_HEAD, None)


def _zero_value_head(model: PreTrainedModel) -> None:
    """A new value head predicts 0. Random values would add noise to the first advantages, in large models more than the
    rewards. The head learns from the first step on, the layers below it from the second."""
    head = value_head(model)
    assert head is not None
    nn.init.zeros_(head.weight)


def output_head(model: PreTrainedModel) -> nn.Linear:
    """The linear layer from hidden states to logits."""
    head: nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def _check_head(model_config: Any, section: str, path: str) -> None:
    for name in LOGIT_SCALES:
        if getattr(model_config, name, None) not in (None, 1.0):
            raise config_error(
                f"{section}.path", f"{path} scales its logits ({name} in its config.json), which is not supported yet"
            )


def remove_dropout(model: nn.Module) -> None:
    """Sets every dropout probability to 0, also those that attention passes as numbers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _check_dropout(model: nn.Module, attention: str, section: str) -> None:
    drops = any(getattr(module, "attention_dropout", 0.0) for module in model.modules())
    if attention == "flex_attention" and drops:
        message = "flex_attention does not support this model's attention_dropout"
        raise config_error(f"{section}.attn_impl", f"{message}; use sdpa, or set {section}.disable_dropout=true")
