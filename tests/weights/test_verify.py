"""Publications are verified without torch, with the same messages."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from areal_like.weights.disk import load_version, publish_weights, with_dtype_names
from areal_like.weights.errors import BadWeights
from areal_like.weights.verify import checkpoint_tensors, verify_publication
from tests.weights.test_refused import DAMAGED, EXPECTED, TENSORS, flip, published


def flipped(root: Path) -> Path:
    folder = published(root)
    content = TENSORS[DAMAGED].numpy().tobytes()
    (path,) = (path for path in folder.glob("bucket-*") if content in path.read_bytes())
    flip(path, path.read_bytes().index(content))
    return folder


def cut_off(root: Path) -> Path:
    folder = published(root)
    path = folder / "bucket-001.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    return folder


def without_a_layer(root: Path) -> Path:
    return published(root, {name: tensor for name, tensor in TENSORS.items() if ".layers.2." not in name})


def in_another_precision(root: Path) -> Path:
    return published(root, {**TENSORS, DAMAGED: TENSORS[DAMAGED].bfloat16()})


def stale(root: Path) -> Path:
    return published(root, version=5)


@pytest.mark.parametrize("fault", [flipped, cut_off, without_a_layer, in_another_precision, stale])
def test_errors_are_the_same_with_and_without_torch(tmp_path, fault: Callable[[Path], Path]) -> None:
    folder = fault(tmp_path)
    with pytest.raises(BadWeights) as by_torch:
        load_version(folder, EXPECTED, newer_than=5, run_id="run-1")
    with pytest.raises(BadWeights) as without:
        verify_publication(folder, with_dtype_names(EXPECTED), newer_than=5, run_id="run-1")
    assert str(without.value) == str(by_torch.value)


def test_a_valid_publication_matches_its_index(tmp_path) -> None:
    index = verify_publication(published(tmp_path), with_dtype_names(EXPECTED), newer_than=5, run_id="run-1")
    assert index.version == 6
    assert [info.name for info in index.tensors] == list(TENSORS)
    assert verify_publication(tmp_path / "v000006", None, newer_than=-1) == index


def test_tensors_of_a_checkpoint_are_read_from_file_headers(tmp_path) -> None:
    first = {"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}
    safetensors.torch.save_file(first, tmp_path / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    safetensors.torch.save_file(
        {"c": torch.zeros((), dtype=torch.int64)}, tmp_path / "model-00002-of-00002.safetensors"
    )
    assert checkpoint_tensors(tmp_path) == {"a": ((2, 3), "float32"), "b": ((4,), "bfloat16"), "c": ((), "int64")}
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no safetensors files"):
        checkpoint_tensors(tmp_path / "empty")


def test_verification_needs_no_torch(tmp_path) -> None:
    folder = publish_weights(tmp_path, 0, TENSORS.items(), None, "run-1")
    code = (
        "import sys; from pathlib import Path; from areal_like.weights.verify import verify_publication;"
        "import areal_like.weights.rendezvous; verify_publication(Path(sys.argv[1]), None, -1); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)]).returncode == 0
