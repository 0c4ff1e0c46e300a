"""LoRA adapters in peft's format: their configuration and tensors, and the check that they can be served.

An adapter adds `scale * (x @ A.T) @ B.T` to a linear layer's output. Without torch, as servers that only forward
adapters check them too.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from areal_like.weights.errors import BadWeights, count_by_layer, with_layer

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
"""Prefix of tensor names in adapter files."""
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""Suffixes of a layer's name: A is [rank, in_features], B is [out_features, rank]."""

UNSUPPORTED_OPTIONS: dict[str, str] = {
    "modules_to_save": "whole modules, which an adapter cannot hold; publish merged weights (weight_update_mode disk)",
    "use_dora": "magnitudes (DoRA)",
    "lora_bias": "biases",
    "trainable_token_indices": "rows of the embeddings",
    "target_parameters": "parameters that are not linear layers",
    "layer_replication": "additional layers",
    "rank_pattern": "different ranks per layer",
    "alpha_pattern": "different alphas per layer",
    "exclude_modules": "exceptions from target_modules; list the included layers there instead",
    "layers_to_transform": "some layers only; list them in target_modules instead",
    "fan_in_fan_out": "transposed layers",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal matrices",
    "alora_invocation_tokens": "tokens that switch it on",
    "arrow_config": "routing",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "Monte Carlo LoRA",
}
"""Keys of adapter_config.json that must be unset -> what they would add."""
SUPPORTED_INITS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that do not change the model's weights."""
ALL_LINEAR = "all-linear"

Shapes = Mapping[str, tuple[int, ...]]


class AdapterConfig(NamedTuple):
    """The supported part of adapter_config.json."""

    rank: int
    scale: float
    targets: tuple[str, ...] | str

    def fits(self, layer: str) -> bool:
        """As peft reads target_modules: a list of name suffixes, or a regular expression for the full name."""
        if self.targets == ALL_LINEAR:
            return True
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, layer) is not None
        return any(layer == each or layer.endswith(f".{each}") for each in self.targets)


def parse_adapter_config(config: Any, whose: str) -> AdapterConfig:
    """`whose` begins every message, such as `version 3 of the weights`."""
    if not isinstance(config, Mapping) or str(config.get("peft_type", "LORA")).upper() != "LORA":
        kind = config.get("peft_type") if isinstance(config, Mapping) else type(config).__name__
        raise BadWeights(f"{whose}: {CONFIG_FILE} is of an adapter of kind {kind}; only LORA can be served")
    for key, what in UNSUPPORTED_OPTIONS.items():
        if config.get(key):
            raise BadWeights(f"{whose}: {CONFIG_FILE} has {key}={config[key]}: {what}")
    if config.get("bias", "none") != "none":
        raise BadWeights(
            f"{whose}: {CONFIG_FILE} has bias={config['bias']}: the model's biases would change; take none"
        )
    if config.get("init_lora_weights") not in SUPPORTED_INITS:
        raise BadWeights(
            f"{whose}: {CONFIG_FILE} has init_lora_weights={config['init_lora_weights']}, which changes the model's "
            "weights; convert it with peft (path_initial_model_for_weight_conversion)"
        )
    rank, alpha, targets = config.get("r"), config.get("lora_alpha"), config.get("target_modules")
    if type(rank) is not int or rank < 1 or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise BadWeights(f"{whose}: {CONFIG_FILE} has r={rank} and lora_alpha={alpha}; both are numbers, r from 1 on")
    if not isinstance(targets, str | list) or not targets:
        raise BadWeights(f"{whose}: {CONFIG_FILE} has target_modules={targets}; it names the layers that have it")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return AdapterConfig(rank, scale, targets if isinstance(targets, str) else tuple(map(str, targets)))


def linear_layers(names: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, tuple[int, int]]:
    """Tensors of a checkpoint (name -> shape and type) that may be linear layers, to which an adapter can apply."""
    layers = {}
    for name, (shape, _) in names.items():
        if name.endswith(".weight") and len(shape) == 2 and "embed" not in name:
            layers[name.removesuffix(".weight")] = (shape[0], shape[1])
    return layers


def check_tensors(
    lora: AdapterConfig, tensors: Shapes, layers: Mapping[str, tuple[int, int]], tied: Iterable[str], whose: str
) -> None:
    """Refuses an adapter whose tensors do not match its configuration for a model. `layers`: the model's linear layers
    with out_features and in_features. `tied`: layers that share their weight with another module. Reports all problems
    at once."""
    problems = []
    for target in lora.targets if isinstance(lora.targets, tuple) else ():
        alone = lora._replace(targets=(target,))
        if fit := [name for name in tied if alone.fits(name)]:
            problems.append(f"{fit[0]} shares its weight with another module and cannot have an adapter")
        elif not any(map(alone.fits, layers)):
            there = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
            problems.append(f"the model has no linear layer {target}; there are {there}")
    targeted = {name: shape for name, shape in layers.items() if lora.fits(name)}
    if lora.targets == ALL_LINEAR:  # all but the head, as peft reads it
        targeted = {name: shape for name, shape in targeted.items() if name != "lm_head"}
    expected = {}
    for name, (high, low) in targeted.items():
        expected[f"{PEFT_PREFIX}{name}{LORA_A}"] = (lora.rank, low)
        expected[f"{PEFT_PREFIX}{name}{LORA_B}"] = (high, lora.rank)
    if missing := [name for name in expected if name not in tensors]:
        problems.append(count_by_layer(missing, "missing"))
    if not problems and (unexpected := [name for name in tensors if name not in expected]):
        problems.append(count_by_layer(unexpected, "not in target_modules"))
    for name, shape in tensors.items():
        if name in expected and tuple(shape) != expected[name]:
            problems.append(f"{with_layer(name)} has shape {list(shape)} and not {list(expected[name])}")
    if problems:
        text = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
        raise BadWeights(f"{whose}: {text}. An adapter must have been trained on the model that is served")
