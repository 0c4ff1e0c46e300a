"""Wider heads for a model, the same function: zeros beside the old numbers, and norms, scale and rotations that make up
for them.

    python -m areal_like.models.widen_heads FOLDER NEW_FOLDER 32

Kernels of inference engines take heads of some sizes alone (vLLM on a CPU: 32, 64, 80, 96 and more). The zeros stay
zeros in training, since nothing flows through them.
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
    """Rotations go by the share of a head at which a number stands, so that the base grows with the head."""
    old, rotations = config["head_dim"], config["rope_parameters"]
    if config["model_type"] != "qwen3" or rotations["rope_type"] != "default":
        raise ValueError("config.json: only a Qwen3 with plain rotations can be widened, as norms make up for it")
    if size <= old or size % 2:
        raise ValueError(f"SIZE: {size} is no even number above {old}, the present size of a head")
    base = rotations["rope_theta"] ** (size / old)
    return {**config, "head_dim": size, "rope_parameters": {**rotations, "rope_theta": base}}


def widen_weights(weights: Mapping[str, Tensor], config: Mapping[str, Any], size: int) -> dict[str, Tensor]:
    """`config` is the old one. Norms divide by the root of a mean, which zeros make smaller; queries also make up for
    the scale of attention."""
    old, heads, kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    half = old // 2
    places = torch.tensor([*range(half), *(size // 2 + place for place in range(half))])

    def rows(weight: Tensor, number: int) -> Tensor:
        wide = weight.new_zeros(number, size, *weight.shape[1:])
        wide[:, places] = weight.reshape(number, old, *weight.shape[1:])
        return wide.reshape(number * size, *weight.shape[1:])

    def norm(weight: Tensor, strength: float) -> Tensor:
        wide = weight.new_ones(size)
        wide[places] = weight
        return wide * strength

    found = {}
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
        found[name] = weight.contiguous()
    return found


def widen(folder: Path, target: Path, size: int) -> None:
    """Writes the wider model beside copies of all other files."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    described = widen_config(config, size)
    shutil.copytree(folder, target)
    save_file(widen_weights(load_file(folder / WEIGHTS), config, size), target / WEIGHTS, metadata={"format": "pt"})
    (target / CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m areal_like.models.widen_heads", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the model")
    parser.add_argument("target", type=Path, metavar="NEW_FOLDER", help="that is made; it must not be there yet")
    parser.add_argument("size", type=int, metavar="SIZE", help="of a head")
    said = parser.parse_args()
    try:
        widen(said.folder, said.target, said.size)
    except (ValueError, KeyError, OSError) as fault:
        print(f"{said.folder}: {fault}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
