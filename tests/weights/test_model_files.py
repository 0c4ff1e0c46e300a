"""Hashes of a model's files in the precision of a server."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from areal_like.weights.errors import BadWeights
from areal_like.weights.fingerprint import tensor_hashes
from areal_like.weights.model_files import model_tensors

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EXACT = [0.0, -0.0, 1.0, 1.00390625, 1.01171875, -65504.0, 1e-8, 6e-8, float("inf"), 3.3895e38, 3e-41]
"""Halfway between two numbers, at the ends of a type, and too small for one."""


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("served", DTYPES)
def test_tensors_have_the_hashes_that_torch_gives_them_after_a_conversion(
    tmp_path: Path, stored: torch.dtype, served: torch.dtype
) -> None:
    random = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    tensors = {"a.weight": random.to(stored), "b.weight": torch.tensor(EXACT).to(stored), "c.bias": torch.arange(5)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = {info.name: info.hash for info in model_tensors(tmp_path, str(served).removeprefix("torch."))}
    converted = {name: each.to(served) if each.is_floating_point() else each for name, each in tensors.items()}
    assert found == tensor_hashes(converted.items())


def test_each_tensor_has_the_type_that_the_engine_expects_or_is_left_out(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float64)}
    save_file(tensors, tmp_path / "model-1.safetensors")
    save_file({"c": torch.ones(2)}, tmp_path / "model-2.safetensors")
    infos = model_tensors(tmp_path, "bfloat16", {"a": ((2, 3), "float32")})
    assert sorted((info.name, info.dtype, info.shape) for info in infos) == [
        ("a", "float32", (2, 3)),
        ("b", "float64", (4,)),
        ("c", "bfloat16", (2,)),
    ]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match="holds no safetensors files"):
        model_tensors(tmp_path, "bfloat16")
    (tmp_path / "model.safetensors").write_bytes(b"\x05")
    with pytest.raises(BadWeights, match="cannot be read"):
        model_tensors(tmp_path, "bfloat16")
