"""What an adapter is: thin matrices A and B beside linear layers, as peft lays them out, and which ones can be served.

A layer's output gets `scale * (x @ A.T) @ B.T` added. No torch: who only passes adapters on checks them as well.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from areal_like.weights.errors import BadWeights, count_by_layer, with_layer

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
"""What names in adapter files begin with."""
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""What follows a layer's name: A is [rank, what goes in], B is [what comes out, rank]."""

UNSUPPORTED_OPTIONS: dict[str, str] = {
    "modules_to_save": "whole modules, which no adapter can carry; publish merged weights (weight_update_mode disk)",
    "use_dora": "magnitudes (DoRA)",
    "lora_bias": "biases",
    "trainable_token_indices": "rows of the embeddings",
    "target_parameters": "parameters that are no linear layer",
    "layer_replication": "layers of its own",
    "rank_pattern": "ranks that differ from layer to layer",
    "alpha_pattern": "strengths that differ from layer to layer",
    "exclude_modules": "exceptions from target_modules; name the layers that have it instead",
    "layers_to_transform": "some layers alone; name them in target_modules instead",
    "fan_in_fan_out": "transposed layers",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal matrices",
    "alora_invocation_tokens": "tokens that switch it on",
    "arrow_config": "routing",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "Monte Carlo LoRA",
}
"""Keys of adapter_config.json that must ask for nothing, and what they would ask for."""
SUPPORTED_INITS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the model's own weights alone."""
ALL_LINEAR = "all-linear"

Shapes = Mapping[str, tuple[int, ...]]


class AdapterConfig(NamedTuple):
    """What adapter_config.json says of an adapter that can be served."""

    rank: int
    scale: float
    targets: tuple[str, ...] | str

    def fits(self, layer: str) -> bool:
        """As peft reads target_modules: a list of ends of names, or an expression for all of a name."""
        if self.targets == ALL_LINEAR:
            return True
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, layer) is not None
        return any(layer == each or layer.endswith(f".{each}") for each in self.targets)


def parse_adapter_config(said: Any, whose: str) -> AdapterConfig:
    """`whose` begins every complaint, such as `version 3 of the weights`."""
    if not isinstance(said, Mapping) or str(said.get("peft_type", "LORA")).upper() != "LORA":
        kind = said.get("peft_type") if isinstance(said, Mapping) else type(said).__name__
        raise BadWeights(f"{whose}: {CONFIG_FILE} is of an adapter of kind {kind}; only LORA can be served")
    for key, what in UNSUPPORTED_OPTIONS.items():
        if said.get(key):
            raise BadWeights(f"{whose}: {CONFIG_FILE} has {key}={said[key]}: {what}")
    if said.get("bias", "none") != "none":
        raise BadWeights(f"{whose}: {CONFIG_FILE} has bias={said['bias']}: the model's biases would change; take none")
    if said.get("init_lora_weights") not in SUPPORTED_INITS:
        raise BadWeights(
            f"{whose}: {CONFIG_FILE} has init_lora_weights={said['init_lora_weights']}, which changes the model's own "
            "weights; convert it with peft (path_initial_model_for_weight_conversion)"
        )
    rank, alpha, targets = said.get("r"), said.get("lora_alpha"), said.get("target_modules")
    if type(rank) is not int or rank < 1 or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise BadWeights(f"{whose}: {CONFIG_FILE} has r={rank} and lora_alpha={alpha}; both are numbers, r from 1 on")
    if not isinstance(targets, str | list) or not targets:
        raise BadWeights(f"{whose}: {CONFIG_FILE} has target_modules={targets}; it names the layers that have it")
    scale = alpha / (math.sqrt(rank) if said.get("use_rslora") else rank)
    return AdapterConfig(rank, scale, targets if isinstance(targets, str) else tuple(map(str, targets)))


def linear_layers(names: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, tuple[int, int]]:
    """What of a checkpoint (name -> shape and type) can be linear layers: all that an adapter could be for."""
    layers = {}
    for name, (shape, _) in names.items():
        if name.endswith(".weight") and len(shape) == 2 and "embed" not in name:
            layers[name.removesuffix(".weight")] = (shape[0], shape[1])
    return layers


def check_tensors(
    lora: AdapterConfig, found: Shapes, layers: Mapping[str, tuple[int, int]], tied: Iterable[str], whose: str
) -> None:
    """Refuses an adapter whose tensors are not those that its configuration promises for a model. `layers`: the
    model's linear layers with what comes out of and goes into each; those of `tied` share their weight with another
    module. All that is wrong is told at once."""
    problems = []
    for target in lora.targets if isinstance(lora.targets, tuple) else ():
        alone = lora._replace(targets=(target,))
        if fit := [name for name in tied if alone.fits(name)]:
            problems.append(f"{fit[0]} shares its weight with another module and can have no adapter of its own")
        elif not any(map(alone.fits, layers)):
            there = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            problems.append(f"the model has no linear layer {target}; there are {there}")
    wanted = {name: shape for name, shape in layers.items() if lora.fits(name)}
    if lora.targets == ALL_LINEAR:  # all but the head, as peft reads it
        wanted = {name: shape for name, shape in wanted.items() if name != "lm_head"}
    expected = {}
    for name, (high, low) in wanted.items():
        expected[f"{PEFT_PREFIX}{name}{LORA_A}"] = (lora.rank, low)
        expected[f"{PEFT_PREFIX}{name}{LORA_B}"] = (high, lora.rank)
    if missing := [name for name in expected if name not in found]:
        problems.append(count_by_layer(missing, "missing"))
    if not problems and (unexpected := [name for name in found if name not in expected]):
        problems.append(count_by_layer(unexpected, "not what target_modules promises"))
    for name, shape in found.items():
        if name in expected and tuple(shape) != expected[name]:
            problems.append(f"{with_layer(name)} has shape {list(shape)} and not {list(expected[name])}")
    if problems:
        said = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
        raise BadWeights(f"{whose}: {said}. An adapter must have been trained on the model that is served")
