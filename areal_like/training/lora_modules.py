"""Selects the layers of a model that get an adapter, and the modules that are fully trained beside them."""

import re
from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.data.user_code import config_error
from areal_like.training.model import VALUE_HEAD, output_head

ALL_LINEAR = "all-linear"


def target_modules(model: PreTrainedModel, config: TrainEngineConfig, section: str, saved: Sequence[str]) -> list[str]:
    """The layers that get an adapter: by their last name component where that is unambiguous, as servers expect."""
    key = f"{section}.target_modules"
    modules = dict(model.named_modules())
    head = output_head(model)
    heads = {name for name, module in modules.items() if module is head or name == VALUE_HEAD}
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear) and name not in heads]
    linear = [name for name in linear if not any(name == each or name.startswith(f"{each}.") for each in saved)]
    chosen: set[str] = set()
    for pattern in config.target_modules or [ALL_LINEAR]:
        matches = linear if pattern == ALL_LINEAR else [name for name in modules if _matches(name, pattern)]
        if not set(matches) & set(linear):
            raise config_error(key, _mismatch_message(pattern, matches, heads, modules, linear, section))
        chosen |= set(matches) & set(linear)
    last = {name.rpartition(".")[2] for name in chosen}
    is_unambiguous = chosen == {name for name in linear if name.rpartition(".")[2] in last}
    return sorted(last if is_unambiguous else chosen)


def modules_to_save(model: PreTrainedModel, config: TrainEngineConfig, section: str) -> list[str]:
    """Modules that are fully trained; the head of a value model always is, since it starts at zero."""
    key = f"{section}.lora_modules_to_save"
    modules = {name: module for name, module in model.named_modules() if name}
    tied = set(model.all_tied_weights_keys) | set(model.all_tied_weights_keys.values())
    chosen: set[str] = set()
    for pattern in [*config.lora_modules_to_save, *([VALUE_HEAD] if config.is_critic else [])]:
        matches = [name for name in modules if _ends_with(name, pattern)]
        matches = [name for name in matches if any(True for _ in modules[name].parameters())]
        if not matches:
            known = ", ".join(sorted({name.rpartition(".")[2] for name in modules if not name[-1].isdigit()}))
            raise config_error(key, f"the model has no module {pattern}; its modules are {known}")
        if shared := [name for name in matches if any(weight.startswith(f"{name}.") for weight in tied)]:
            message = f"{shared[0]} shares its weight with another module and cannot be trained separately"
            raise config_error(key, f"{message}; leave it out")
        if module_lists := [name for name in matches if isinstance(modules[name], nn.ModuleList)]:
            raise config_error(key, f"{module_lists[0]} is a list of modules; name its elements")
        chosen |= set(matches)
    return sorted(chosen)


def _mismatch_message(
    pattern: str,
    matches: Sequence[str],
    heads: set[str],
    modules: dict[str, nn.Module],
    linear: Sequence[str],
    section: str,
) -> str:
    if set(matches) & heads:
        return f"{pattern} is the model's head, which gets no adapter; use {section}.lora_modules_to_save for it"
    known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    if any(isinstance(modules[name], nn.Linear) for name in matches):
        return f"{pattern} is fully trained by {section}.lora_modules_to_save already; name it only once"
    if matches:
        kind = type(modules[matches[0]]).__name__
        return f"{pattern} is not a linear layer but {kind}; linear layers are {known}"
    return f"the model has no module that matches {pattern} by name or regular expression; linear layers are {known}"


def _ends_with(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def _matches(name: str, pattern: str) -> bool:
    """By its last name components, or the full name by a regular expression."""
    if _ends_with(name, pattern):
        return True
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False
