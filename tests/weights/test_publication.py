"""Published weights are loaded bit-exact and verified, complete or not at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from areal_like.process.errors import FinalFailure
from areal_like.weights.adapter import publish_adapter
from areal_like.weights.buckets import plan_buckets
from areal_like.weights.disk import load_version, publish_weights, remove_versions, write_weights
from areal_like.weights.fingerprint import compare, tensor_hash
from areal_like.weights.flat_buckets import copy_weights
from areal_like.weights.index import read_index
from areal_like.weights.probe import Probe

SHARED_MEMORY = Path("/dev/shm")


def model() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {"model.embed_tokens.weight": torch.randn(11, 6, generator=generator)}
    for layer in range(3):
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = torch.randn(7, 6, generator=generator).bfloat16()
        tensors[f"model.layers.{layer}.scale"] = torch.tensor(layer, dtype=torch.float16)
        tensors[f"model.layers.{layer}.counts"] = torch.arange(3)
    tensors["model.nothing"] = torch.empty(0, 4)
    tensors["model.turned"] = torch.randn(4, 5, generator=generator).t()
    return tensors


def expected(tensors: dict[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


@pytest.fixture(params=["disk", "memory"])
def root(request, tmp_path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path / "weights"
        return
    if not SHARED_MEMORY.is_dir():
        pytest.skip("this machine has no shared memory that is a folder")
    folder = SHARED_MEMORY / f"areal-like-test-{os.getpid()}"
    yield folder
    remove_versions(folder, keep=set())
    folder.rmdir()  # fails if anything but versions is left


def test_a_publication_is_loaded_bit_exact_in_order(root) -> None:
    tensors = model()
    probe = Probe([1, 2, 3], [-0.5, -1.25])
    folder = publish_weights(root, 3, tensors.items(), probe, "run-1", max_bucket_bytes=200)
    assert folder == root / "v000003"
    found = load_version(folder, expected(tensors), newer_than=2, run_id="run-1")
    assert (found.version, found.run_id, found.probe) == (3, "run-1", probe)
    assert list(found.tensors) == list(found.hashes) == list(tensors)
    assert found.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
        assert found.hashes[name] == tensor_hash(tensor) == tensor_hash(found.tensors[name])


def test_loaded_tensors_can_be_changed_without_changing_the_publication(root) -> None:
    tensors = model()
    folder = publish_weights(root, 0, tensors.items(), None, "run-1")
    first = load_version(folder, expected(tensors), newer_than=-1)
    assert first.probe is None
    for tensor in first.tensors.values():
        tensor.zero_()
    assert torch.equal(
        load_version(folder, expected(tensors), newer_than=-1).tensors["model.turned"], tensors["model.turned"]
    )


def test_loaded_tensors_outlive_the_publication(root) -> None:
    tensors = model()
    found = load_version(publish_weights(root, 0, tensors.items(), None, "run-1"), expected(tensors), newer_than=-1)
    remove_versions(root, keep=set())
    compare(found.hashes, {name: tensor_hash(tensor) for name, tensor in found.tensors.items()}, 0)


def test_buckets_are_safetensors_files_that_any_tool_reads(tmp_path) -> None:
    tensors = model()
    folder = publish_weights(tmp_path, 3, tensors.items(), None, "run-1", max_bucket_bytes=200)
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("bucket-*.safetensors")):
        found |= safetensors.torch.load_file(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_buckets_keep_the_order_and_their_limit_unless_one_tensor_is_larger() -> None:
    taken: list[int] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for size in (40, 50, 10, 1, 300, 20, 20):
            taken.append(size)
            yield str(size), torch.zeros(size, dtype=torch.uint8)

    buckets = plan_buckets(tensors(), max_bytes=100)
    assert [name for name, _ in next(buckets)] == ["40", "50", "10"]
    assert taken == [40, 50, 10, 1]  # no more of the model has to be there than a bucket and the tensor after it
    assert [[name for name, _ in bucket] for bucket in buckets] == [["1"], ["300"], ["20", "20"]]


def test_the_index_lists_the_tensors_of_each_bucket(tmp_path) -> None:
    tensors = model()
    folder = publish_weights(tmp_path, 3, tensors.items(), None, "run-1", max_bucket_bytes=200)
    index = read_index(folder)
    assert [info.name for info in index.tensors] == list(tensors)
    assert len(index.buckets) > 2
    for bucket in index.buckets:
        assert (folder / bucket.file).stat().st_size == bucket.bytes
        assert len(bucket.hash) == 16
        assert len(bucket.tensors) == 1 or sum(info.nbytes for info in bucket.tensors) <= 200


def test_a_hash_is_of_content_type_and_shape() -> None:
    plain = torch.arange(6, dtype=torch.float32)
    others = [plain.int(), plain.reshape(2, 3), plain.flip(0), -plain, plain[:5], plain.bfloat16()]
    same_bytes = plain.view(torch.int32)
    assert len({tensor_hash(tensor) for tensor in (plain, same_bytes, *others)}) == 8
    assert tensor_hash(plain.clone()) == tensor_hash(plain)
    turned = torch.arange(6.0).reshape(2, 3).t()
    assert tensor_hash(turned) == tensor_hash(turned.contiguous())
    assert tensor_hash(torch.tensor(float("nan"))) == tensor_hash(torch.tensor(float("nan")))


def test_a_publication_that_fails_leaves_nothing(tmp_path) -> None:
    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield "a", torch.zeros(100)
        yield "b", torch.zeros(100)
        raise RuntimeError("the export broke")

    with pytest.raises(RuntimeError, match="the export broke"):
        publish_weights(tmp_path, 1, tensors(), None, "run-1", max_bucket_bytes=100)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="tensor a is given twice"):
        publish_weights(tmp_path, 1, [("a", torch.zeros(1)), ("a", torch.zeros(1))], None, "run-1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_numbers_are_published_as_they_are(dtype, tmp_path) -> None:
    tensors = {"model.codes": torch.tensor([[1, 2, 65535]]).to(dtype)}
    folder = publish_weights(tmp_path, 1, tensors.items(), None, "run-1")
    found = load_version(folder, expected(tensors), newer_than=0).tensors["model.codes"]
    assert found.dtype == dtype and found.tolist() == [[1, 2, 65535]]
    assert safetensors.torch.load_file(folder / "bucket-000.safetensors")["model.codes"].dtype == dtype


@pytest.mark.parametrize("publish", ["files", "sent", "adapter"])
def test_a_type_that_cannot_be_published_is_named_with_its_tensor(publish, tmp_path) -> None:
    tensors = [("model.norm.weight", torch.ones(2)), ("model.rotation", torch.ones(2, dtype=torch.complex64))]
    words = r"^tensor model\.rotation has the type complex64, which cannot be published; bfloat16, bool, .* convert it$"
    with pytest.raises(ValueError, match=words):
        if publish == "files":
            publish_weights(tmp_path, 1, tensors, None, "run-1")
        elif publish == "sent":
            copy_weights(tensors)
        else:
            publish_adapter(tmp_path, 1, tensors, {}, None, "run-1")
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_named(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("areal_like.weights.disk.write_index", full)
    with pytest.raises(OSError, match=r"version 1 of the weights cannot be written: No space left.*v000001") as caught:
        publish_weights(tmp_path, 1, [("a", torch.zeros(1))], None, "run-1")
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []


def test_a_version_of_an_earlier_attempt_is_replaced(tmp_path) -> None:
    publish_weights(tmp_path, 1, [("a", torch.zeros(1)), ("b", torch.zeros(2))], None, "run-1")
    folder = publish_weights(tmp_path, 1, [("a", torch.ones(1))], None, "run-1")
    found = load_version(folder, {"a": ((1,), torch.float32)}, newer_than=0)
    assert found.tensors["a"].item() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["v000001"]


def test_only_kept_versions_remain_and_partial_ones_are_removed(tmp_path) -> None:
    remove_versions(tmp_path / "none yet", keep={1})
    for version in range(4):
        publish_weights(tmp_path, version, [("a", torch.zeros(1))], None, "run-1")
    (tmp_path / ".v000004.1.new").mkdir()
    (tmp_path / f".v000005.{os.getpid()}.new").mkdir()
    (tmp_path / "notes").mkdir()
    remove_versions(tmp_path, keep={2, 3, 9})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"v000002", "v000003", f".v000005.{os.getpid()}.new", "notes"}


@pytest.mark.parametrize("publish", ["files", "copy", "adapter"])
def test_a_publisher_whose_run_was_taken_over_while_it_wrote_replaces_no_version(publish, tmp_path) -> None:
    tensors = [("a", torch.ones(1))]
    publish_weights(tmp_path, 1, [("a", torch.zeros(1))], None, "run-1")
    with pytest.raises(FinalFailure, match="taken over"):
        if publish == "files":
            publish_weights(tmp_path, 1, tensors, None, "run-1", require=taken_over)
        elif publish == "copy":
            write_weights(tmp_path, copy_weights(tensors).hashed(1, None, "run-1"), taken_over)
        else:
            publish_adapter(tmp_path, 1, tensors, {}, None, "run-1", taken_over)
    assert [path.name for path in tmp_path.iterdir()] == ["v000001"]
    assert load_version(tmp_path / "v000001", {"a": ((1,), torch.float32)}, newer_than=0).tensors["a"].item() == 0


@pytest.mark.parametrize("name", ["v000001", ".v000004.1.new"])
def test_before_each_folder_is_removed_the_run_must_be_its_own(name, tmp_path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(FinalFailure, match="taken over"):
        remove_versions(tmp_path, set(), taken_over)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def taken_over() -> None:
    raise FinalFailure("taken over")


def test_publications_are_private_to_their_user(tmp_path) -> None:
    folder = publish_weights(tmp_path / "weights", 0, [("a", torch.zeros(1))], None, "run-1")
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
