"""Weights have the names of the model's files, also where transformers keeps others in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MixtralConfig

from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer
from areal_like.weights.hub_names import HubNames
from areal_like.weights.persistent_buffers import persistent_buffers
from tests.support.training_runs import MODELS, SHAPE

MIXTURES = {
    "qwen3_moe": "model.layers.1.mlp.experts.3.up_proj.weight",
    "deepseek_v3": "model.layers.1.mlp.experts.3.up_proj.weight",
    "mixtral": "model.layers.1.block_sparse_moe.experts.3.w3.weight",
}
"""Families, and a tensor that is in their files."""
CONFIGS = {**MODELS, "mixtral": MixtralConfig(**SHAPE, num_local_experts=4)}


def made(name: str, seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[name])


def in_memory(model: Any) -> dict[str, torch.Tensor]:
    tensors = {name: parameter.data for name, parameter in model.named_parameters()}
    return tensors | dict(persistent_buffers(model))


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_have_the_names_and_contents_of_files(tmp_path: Path, name: str, loads: bool) -> None:
    model = made(name)
    model.save_pretrained(tmp_path)
    if loads:
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
    files = load_file(tmp_path / "model.safetensors")
    tensors = dict(HubNames(model).rename(in_memory(model).items()))
    assert MIXTURES[name] in tensors and tensors.keys() == files.keys()
    assert all(torch.equal(tensor, files[key]) and tensor.is_contiguous() for key, tensor in tensors.items())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_other_models_keep_their_tensors(name: str) -> None:
    model = made(name)
    tensors = in_memory(model)
    renamed = list(HubNames(model).rename(tensors.items()))
    assert [key for key, _ in renamed] == list(tensors)
    assert all(tensor is tensors[key] for key, tensor in renamed)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_embedded_engine_loads_experts_by_the_names_of_files(name: str) -> None:
    model, other = made(name), made(name, seed=4)
    buffer = DoubleBuffer(model)
    new = dict(HubNames(other).rename(in_memory(other).items()))
    ids = torch.arange(1, 9)[None]

    def logits(of: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = of(input_ids=ids, use_cache=False).logits
        return found

    before = logits(model)
    assert buffer.expected() == {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in new.items()}
    buffer.stage(new)
    assert torch.equal(logits(model), before)
    buffer.swap()
    assert torch.equal(logits(model), logits(other)) and not torch.equal(before, logits(other))
    assert all(torch.equal(tensor, new[key]) for key, tensor in buffer.tensors())
    buffer.swap()
    assert torch.equal(logits(model), before)
