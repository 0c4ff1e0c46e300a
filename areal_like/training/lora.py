"""Low-rank adapters: thin matrices beside the linear layers are trained, and the model's own weights stay as they are.

peft puts them in. Weights are exported merged, each time anew from the base, so that nothing is rounded twice.
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
"""What peft calls the only adapter there is."""

BASE, ORIGINAL = ".base_layer.", ".original_module."
ADAPTER_PARAMETER = re.compile(rf"\.(lora_A|lora_B|modules_to_save)\.{ADAPTER_NAME}\.")
FILE_PREFIX = "base_model.model."
"""What names in adapter files begin with."""


def is_adapter_parameter(name: str) -> bool:
    """Whether a parameter belongs to an adapter, and not to the model."""
    return ADAPTER_PARAMETER.search(name) is not None


def add_adapter(model: PreTrainedModel, config: TrainEngineConfig, where: str, seed: int) -> "LoraAdapter":
    """Changes the model: its linear layers get adapters that change nothing yet, and only these are trained."""
    saved = modules_to_save(model, config, where)
    alpha: Any = config.lora_alpha  # peft declares whole numbers, and computes with any
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
        lora_dropout=config.lora_dropout,
        target_modules=target_modules(model, config, where, saved),
        modules_to_save=saved or None,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        get_peft_model(model, settings)
    if any(isinstance(module, ParamWrapper) for module in model.modules()):
        message = "reaches experts that the model holds in one tensor, whose adapters cannot be merged yet"
        raise config_error(f"{where}.target_modules", f"{message}; name attention's layers alone, such as [o_proj]")
    # Only now: with it peft would wrap the model in a class of its own for that task.
    settings.task_type = "SEQ_CLS" if config.is_critic else "CAUSAL_LM"
    settings.base_model_name_or_path = config.path  # peft would have the folder, and warns where that is another
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(getattr(torch, config.master_dtype))
    return LoraAdapter(model, settings)


class LoraAdapter:
    """What was put into a model."""

    def __init__(self, model: PreTrainedModel, settings: LoraConfig) -> None:
        self._model, self._settings = model, settings

    @property
    def peft_config(self) -> dict[str, Any]:
        """As it stands in adapter_config.json."""
        said: dict[str, Any] = self._settings.to_dict()  # type: ignore[no-untyped-call]
        found = {key: sorted(value) if isinstance(value, set) else value for key, value in said.items()}
        return {**found, "peft_type": "LORA", "inference_mode": True}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter alone, by the names that peft's files have. All ranks must go through it."""
        for name, parameter in self._model.named_parameters():
            if is_adapter_parameter(name):
                short = name.replace(f".modules_to_save.{ADAPTER_NAME}.", ".").replace(f".{ADAPTER_NAME}.", ".")
                yield FILE_PREFIX + short, full_tensor(parameter.detach())

    def base_parameters(self) -> Iterator[nn.Parameter]:
        """Those that the model has without the adapter."""
        return (parameter for name, parameter in self._model.named_parameters() if not is_adapter_parameter(name))

    def base_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Those that the model's checkpoints have, by the names that they have without the adapter."""
        found = ((name, buffer) for name, buffer in persistent_buffers(self._model) if not is_adapter_parameter(name))
        return ((name.replace(BASE, ".").replace(ORIGINAL, "."), buffer) for name, buffer in found)

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        """The model with the adapter worked in, by the names and in the order that it has without one. All ranks must
        go through it."""
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
    def off(self) -> Iterator[None]:
        """The model as it is without the adapter; not for training."""
        parts = [module for module in self._model.modules() if isinstance(module, LoraLayer | ModulesToSaveWrapper)]
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        for part in parts:
            part.enable_adapters(False)
        for parameter in trained:  # peft takes that away too, and FSDP looks at it but once
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
