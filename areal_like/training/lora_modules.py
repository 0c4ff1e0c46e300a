"""Which layers of a model get an adapter, and which modules are trained in full beside them."""

import re
from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.data.user_code import config_error
from areal_like.training.model import VALUE_HEAD, output_head

ALL_LINEAR = "all-linear"


def target_modules(model: PreTrainedModel, config: TrainEngineConfig, where: str, saved: Sequence[str]) -> list[str]:
    """The layers that get an adapter: by their last names where that says enough, as servers want it."""
    key = f"{where}.target_modules"
    modules = dict(model.named_modules())
    head = output_head(model)
    heads = {name for name, module in modules.items() if module is head or name == VALUE_HEAD}
    linear = [name for name, module in modules.items() if isinstance(module, nn.Linear) and name not in heads]
    linear = [name for name in linear if not any(name == each or name.startswith(f"{each}.") for each in saved)]
    chosen: set[str] = set()
    for wanted in config.target_modules or [ALL_LINEAR]:
        found = linear if wanted == ALL_LINEAR else [name for name in modules if _matches(name, wanted)]
        if not set(found) & set(linear):
            raise config_error(key, _mismatch_message(wanted, found, heads, modules, linear, where))
        chosen |= set(found) & set(linear)
    last = {name.rpartition(".")[2] for name in chosen}
    says_enough = chosen == {name for name in linear if name.rpartition(".")[2] in last}
    return sorted(last if says_enough else chosen)


def modules_to_save(model: PreTrainedModel, config: TrainEngineConfig, where: str) -> list[str]:
    """Modules that are trained as a whole; the head of a value model always is, since it begins with nothing."""
    key = f"{where}.lora_modules_to_save"
    modules = {name: module for name, module in model.named_modules() if name}
    tied = set(model.all_tied_weights_keys) | set(model.all_tied_weights_keys.values())
    chosen: set[str] = set()
    for wanted in [*config.lora_modules_to_save, *([VALUE_HEAD] if config.is_critic else [])]:
        found = [name for name in modules if _ends_with(name, wanted)]
        found = [name for name in found if any(True for _ in modules[name].parameters())]
        if not found:
            there = ", ".join(sorted({name.rpartition(".")[2] for name in modules if not name[-1].isdigit()}))
            raise config_error(key, f"the model has no module {wanted}; there are {there}")
        if shared := [name for name in found if any(weight.startswith(f"{name}.") for weight in tied)]:
            message = f"{shared[0]} shares its weight with another module, and could not be trained apart from it"
            raise config_error(key, f"{message}; leave it out")
        if lists := [name for name in found if isinstance(modules[name], nn.ModuleList)]:
            raise config_error(key, f"{lists[0]} is a list of modules; name those in it")
        chosen |= set(found)
    return sorted(chosen)


def _mismatch_message(
    wanted: str, found: Sequence[str], heads: set[str], modules: dict[str, nn.Module], linear: Sequence[str], where: str
) -> str:
    if set(found) & heads:
        return f"{wanted} is the head of the model, which gets no adapter; take {where}.lora_modules_to_save for it"
    there = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    if any(isinstance(modules[name], nn.Linear) for name in found):
        return f"{wanted} is trained in full already, by {where}.lora_modules_to_save; name it once"
    if found:
        kind = type(modules[found[0]]).__name__
        return f"{wanted} is no linear layer but {kind}; there are {there}"
    return f"the model has no module that {wanted} fits, as a name or as a regular expression; there are {there}"


def _ends_with(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")


def _matches(name: str, wanted: str) -> bool:
    """By its last names, or as a regular expression for all of its name."""
    if _ends_with(name, wanted):
        return True
    try:
        return re.fullmatch(wanted, name) is not None
    except re.error:
        return False
