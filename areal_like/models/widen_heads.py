"""Widens the attention heads of a Qwen3 model without changing its function.

    python -m areal_like.models.widen_heads FOLDER NEW_FOLDER 32

Pads weights with zeros, and adjusts norms, attention scale and rotary base. Kernels of inference engines support some
head sizes only (vLLM on a CPU: 32, 64, 80, 96 and more). The zeros stay zeros in training, since they get no gradient.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def widen_config(config: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The rotary frequency depends on the relative index in the head, so that the base grows with the head."""
    old, rotations = config["head_dim"], config["rope_parameters"]
    if config["model_type"] != "qwen3" or rotations["rope_type"] != "default":
        raise ValueError("config.json: only a Qwen3 with default rotary embeddings can be widened")
    if size <= old or size % 2:
        raise ValueError(f"SIZE: {size} must be an even number above {old}, the current head size")
    base = rotations["rope_theta"] ** (size / old)
    return {**config, "head_dim": size, "rope_parameters": {**rotations, "rope_theta": base}}


def widen_weights(weights: Mapping[str, Tensor], config: Mapping[str, Any], size: int) -> dict[str, Tensor]:
    """`config` is the old one. Norms divide by a root mean square, which zeros reduce; queries also compensate the
    attention scale."""
    old, heads, kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    half = old // 2
    indices = torch.tensor([*range(half), *(size // 2 + place for place in range(half))])

    def rows(weight: Tensor, number: int) -> Tensor:
        wide = weight.new_zeros(number, size, *weight.shape[1:])
        wide[:, indices] = weight.reshape(number, old, *weight.shape[1:])
        return wide.reshape(number * size, *weight.shape[1:])

    def norm(weight: Tensor, strength: float) -> Tensor:
        wide = weight.new_ones(size)
        wide[indices] = weight
        return wide * strength

    widened = {}
    for name, weight in weights.items():
        match name.rsplit(".", 2)[-2]:
            case "q_proj":
                weight = rows(weight, heads)
            case "k_proj" | "v_proj":
                weight = rows(weight, kv_heads)
            case "o_proj":
                weight = rows(weight.T, heads).T
            case "q_norm":
                weight = norm(weight, 1.0)
            case "k_norm":
                weight = norm(weight, math.sqrt(old / size))
        widened[name] = weight.contiguous()
    return widened


def widen(folder: Path, target: Path, size: int) -> None:
    """Writes the wider model and copies of all other files."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    described = widen_config(config, size)
    shutil.copytree(folder, target)
    save_file(widen_weights(load_file(folder / WEIGHTS), config, size), target / WEIGHTS, metadata={"format": "pt"})
    (target / CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m areal_like.models.widen_heads", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the model")
    parser.add_argument("target", type=Path, metavar="NEW_FOLDER", help="created; must not exist")
    parser.add_argument("size", type=int, metavar="SIZE", help="new head size")
    arguments = parser.parse_args()
    try:
        widen(arguments.folder, arguments.target, arguments.size)
    except (ValueError, KeyError, OSError) as fault:
        print(f"{arguments.folder}: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
