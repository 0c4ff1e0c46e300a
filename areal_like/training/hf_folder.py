"""Writes a model folder in the format of transformers: weights, configuration, tokenizer and chat template."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from areal_like.config.sections.weights import WeightsConfig
from areal_like.process.hashed_files import HashedFiles
from areal_like.training.file_split import split_by_size
from areal_like.training.tensor_files import write_tensors

FILES = {"safetensors": ("model", "safetensors"), "torch": ("pytorch_model", "bin")}
"""`weights.save_format` -> transformers' stem and suffix of weight files."""
EXCLUDED_FILES = ("config.json", "origin.json", "manifest.json", "adapter_config.json", "README.md", ".gitattributes")
COPIED_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Suffixes of files that belong to a model beside its weights: tokenizer, chat template, generation defaults, custom
code."""
GENERATION = "generation_config.json"


def write_hf_folder(
    folder: Path,
    model: PreTrainedModel,
    source: Path,
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
    settings: WeightsConfig | None = None,
    tokenizer: Path | None = None,
    files: HashedFiles | None = None,
) -> None:
    """`source` is the folder that the model was loaded from, `tokenizer` that of its tokenizer if different. `files`
    learns the hashes of what is written."""
    files = files or HashedFiles()
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(files, folder, _checkpoint_tensors(model, weights), settings)
    config = type(model.config).from_dict(model.config.to_dict())
    config.dtype = dtype
    config.save_pretrained(folder)
    model_files = [file for file in source.iterdir() if _is_copied(file)]
    tokenizer_files = model_files if tokenizer is None else [file for file in tokenizer.iterdir() if _is_copied(file)]
    for sources, is_model_file in ((tokenizer_files, False), (model_files, True)):
        for file in sources:
            if is_model_file == (file.name == GENERATION or file.suffix == ".py"):
                files.copy(file, folder / file.name)
    if model.can_generate() and model.generation_config is not None and not (folder / GENERATION).is_file():
        model.generation_config.save_pretrained(folder)


def _checkpoint_tensors(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reverts transformers' conversions in memory, such as experts fused into one tensor."""
    tensors: dict[str, Tensor] = revert_weight_conversion(model, dict(weights))
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def write_weights(
    files: HashedFiles, folder: Path, weights: Mapping[str, Tensor], settings: WeightsConfig | None = None
) -> None:
    """In one file, or with `weights.save_sharded` in several and an index, if large enough."""
    stem, ending = FILES[settings.save_format if settings is not None else "safetensors"]
    parts = split_by_size(
        weights, settings.max_shard_gb * 1e9 if settings is not None and settings.save_sharded else math.inf
    )
    names = [f"{stem}.{ending}"]
    if len(parts) > 1:
        names = [f"{stem}-{number:05}-of-{len(parts):05}.{ending}" for number in range(1, len(parts) + 1)]
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())},
            "weight_map": {tensor: name for name, tensors in zip(names, parts, strict=True) for tensor in tensors},
        }
        files.write(folder / f"{stem}.{ending}.index.json", (json.dumps(index, indent=1) + "\n").encode())
    for name, tensors in zip(names, parts, strict=True):
        write_tensors(files, folder / name, {tensor: weights[tensor] for tensor in tensors})


def write_adapter(
    files: HashedFiles, folder: Path, tensors: dict[str, Tensor], config: Mapping[str, Any], settings: WeightsConfig
) -> None:
    """A folder in the format of peft."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(files, folder / f"adapter_model.{FILES[settings.save_format][1]}", tensors)
    files.write(folder / "adapter_config.json", (json.dumps(config, indent=1, sort_keys=True) + "\n").encode())


def _is_copied(file: Path) -> bool:
    is_index = file.name.endswith(".index.json")
    return file.is_file() and file.suffix in COPIED_SUFFIXES and file.name not in EXCLUDED_FILES and not is_index
