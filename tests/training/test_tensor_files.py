"""Files of tensors."""

import pytest
import torch
from safetensors.torch import save_file

from areal_like.process.hashed_files import HashedFiles
from areal_like.training.tensor_files import FILE_ORDER, write_tensors
from areal_like.weights.buckets import DTYPES


def test_a_file_has_the_bytes_that_safetensors_would_write(tmp_path):
    assert set(FILE_ORDER) == set(DTYPES)
    for names in (FILE_ORDER, FILE_ORDER[::-1]):
        tensors = {f"{name}.weight": torch.ones(2, 3).to(getattr(torch, name)) for name in names}
        tensors |= {'model.ä"b': torch.ones(()), "none": torch.ones(0, 4), "turned": torch.rand(3, 5).t()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "a", {"format": "pt"})
        write_tensors(HashedFiles(), tmp_path / "b.safetensors", tensors)
        assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a").read_bytes()


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_a_written_file_is_hashed_and_can_be_loaded(tmp_path, suffix):
    files, path = HashedFiles(), tmp_path / f"model.{suffix}"
    write_tensors(files, path, {"w": torch.arange(6.0)})
    assert files.below(tmp_path)[path.name].bytes == path.stat().st_size
    if suffix == "bin":
        assert torch.equal(torch.load(path, weights_only=True)["w"], torch.arange(6.0))
