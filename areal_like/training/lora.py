"""LoRA: low-rank adapters beside the linear layers are trained; the weights of the model are frozen.

peft adds them. Weights are exported merged, computed from the base each time, so that rounding errors do not
accumulate.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.data.user_code import config_error
from areal_like.training.full_tensor import full_tensor
from areal_like.training.lora_modules import modules_to_save, target_modules
from areal_like.weights.persistent_buffers import persistent_buffers

if TYPE_CHECKING:
    pass

ADAPTER_NAME = "default"
"""peft's name of the only adapter."""

BASE, ORIGINAL = ".base_layer.", ".original_module."
ADAPTER_PARAMETER = re.compile(rf"\.(lora_A|lora_B|modules_to_save)\.{ADAPTER_NAME}\.")
FILE_PREFIX = "base_model.model."
"""Prefix of tensor names in adapter files."""


def is_adapter_parameter(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return ADAPTER_PARAMETER.search(name) is not None


def add_adapter(model: PreTrainedModel, config: TrainEngineConfig, section: str, seed: int) -> "LoraAdapter":
    """Adds adapters to the linear layers of the model, in place, and freezes all other weights. New adapters change no
    output."""
    saved = modules_to_save(model, config, section)
    alpha: Any = config.lora_alpha  # peft declares an int, but accepts any number
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
        lora_dropout=config.lora_dropout,
        target_modules=target_modules(model, config, section, saved),
        modules_to_save=saved or None,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        get_peft_model(model, settings)
    if any(isinstance(module, ParamWrapper) for module in model.modules()):
        message = "matches experts that the model keeps in one tensor; their adapters cannot be merged yet"
        raise config_error(f"{section}.target_modules", f"{message}; name layers of attention only, such as [o_proj]")
    # Set late: with it get_peft_model would wrap the model in a task class.
    settings.task_type = "SEQ_CLS" if config.is_critic else "CAUSAL_LM"
    settings.base_model_name_or_path = config.path  # peft warns where this differs from the folder
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(getattr(torch, config.master_dtype))
    return LoraAdapter(model, settings)


class LoraAdapter:
    """The adapter of a model."""

    def __init__(self, model: PreTrainedModel, settings: LoraConfig) -> None:
        self._model, self._settings = model, settings

    @property
    def peft_config(self) -> dict[str, Any]:
        """The content of adapter_config.json."""
        fields: dict[str, Any] = self._settings.to_dict()  # type: ignore[no-untyped-call]
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in fields.items()}
        return {**plain, "peft_type": "LORA", "inference_mode": True}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter's tensors by the names in peft's files. All ranks must iterate."""
        for name, parameter in self._model.named_parameters():
            if is_adapter_parameter(name):
                short = name.replace(f".modules_to_save.{ADAPTER_NAME}.", ".").replace(f".{ADAPTER_NAME}.", ".")
                yield FILE_PREFIX + short, full_tensor(parameter.detach())

    def base_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the model without the adapter."""
        return (parameter for name, parameter in self._model.named_parameters() if not is_adapter_parameter(name))

    def base_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers in checkpoints of the model, by their names without the adapter."""
        buffers = ((name, buffer) for name, buffer in persistent_buffers(self._model) if not is_adapter_parameter(name))
        return ((name.replace(BASE, ".").replace(ORIGINAL, "."), buffer) for name, buffer in buffers)

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        """The model with the adapter merged, with the names and in the order of the model without one. All ranks must
        iterate."""
        layers = dict(self._model.named_modules())
        for name, parameter in self._model.named_parameters():
            if is_adapter_parameter(name):
                continue
            owner, _, kind = name.rpartition(".")
            if name.endswith(f"{BASE}weight"):
                yield name.replace(BASE, "."), _merged(layers[owner.removesuffix(BASE[:-1])])
            elif ORIGINAL in name:
                trained = layers[owner.removesuffix(ORIGINAL[:-1])].modules_to_save[ADAPTER_NAME]
                yield name.replace(ORIGINAL, "."), full_tensor(getattr(trained, kind).detach())
            else:
                yield name.replace(BASE, "."), full_tensor(parameter.detach())

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """The model without the adapter; not for training."""
        parts = [module for module in self._model.modules() if isinstance(module, LoraLayer | ModulesToSaveWrapper)]
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        for part in parts:
            part.enable_adapters(False)
        for parameter in trained:  # peft sets it to False, but FSDP reads it only once
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for part in parts:
                part.enable_adapters(True)


def _merged(layer: nn.Module) -> Tensor:
    assert isinstance(layer, LoraLayer)
    matrices: list[Any] = [layer.get_base_layer(), layer.lora_A[ADAPTER_NAME], layer.lora_B[ADAPTER_NAME]]
    base, low, high = (full_tensor(each.weight.detach()).float() for each in matrices)
    return base + float(layer.scaling[ADAPTER_NAME]) * (high @ low)
