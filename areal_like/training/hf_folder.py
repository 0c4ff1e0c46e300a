"""A folder as transformers reads it: weights, configuration and tokenizer of a model."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

WEIGHTS = "model.safetensors"
NOT_COPIED = ("config.json", "origin.json", "manifest.json", "README.md", ".gitattributes")
COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Endings of what belongs to a model beside its weights: tokenizer, chat template, generation defaults, own code."""


def write_hf_folder(
    folder: Path, causal: PreTrainedModel, source: Path, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """`source` is the folder that the model was loaded from."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / WEIGHTS, metadata={"format": "pt"})
    config = type(causal.config).from_dict(causal.config.to_dict())
    config.dtype = dtype
    config.save_pretrained(folder)
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors lets only its owner read
    for file in source.iterdir():
        is_index = file.name.endswith(".index.json")
        if file.is_file() and file.suffix in COPIED and file.name not in NOT_COPIED and not is_index:
            shutil.copyfile(file, folder / file.name)
    if not (folder / "generation_config.json").is_file() and causal.generation_config is not None:
        causal.generation_config.save_pretrained(folder)
