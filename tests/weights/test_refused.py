"""Weights that are damaged, incomplete, stale or of another model are refused with a message."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from areal_like.weights.disk import load_version, publish_weights
from areal_like.weights.errors import BadWeights, layer_of
from areal_like.weights.fingerprint import compare, tensor_hash
from areal_like.weights.index import INDEX_FILE, dump_index, parse_index, read_index

PARTS = ("input_layernorm", "mlp.down_proj", "mlp.up_proj", "self_attn.q_proj")
NAMES = ["model.embed_tokens", *(f"model.layers.{layer}.{part}" for layer in range(3) for part in PARTS), "model.norm"]
TENSORS = {f"{name}.weight": torch.full((4, 3), float(number)) for number, name in enumerate(NAMES)}
EXPECTED = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in TENSORS.items()}
DAMAGED = "model.layers.1.mlp.up_proj.weight"


def published(root: Path, tensors: dict[str, Tensor] | None = None, version: int = 6) -> Path:
    return publish_weights(root, version, (tensors or TENSORS).items(), None, "run-1", max_bucket_bytes=300)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("offset", [0, 17, -1])
def test_a_flipped_bit_is_detected_and_its_tensor_named(tmp_path, offset) -> None:
    folder = published(tmp_path)
    content = TENSORS[DAMAGED].numpy().tobytes()
    (path,) = (path for path in folder.glob("bucket-*") if content in path.read_bytes())
    flip(path, path.read_bytes().index(content) + offset % len(content))
    with pytest.raises(BadWeights) as caught:
        load_version(folder, EXPECTED, newer_than=5)
    message = str(caught.value)
    assert message.startswith(f"version 6 of the weights: tensor {DAMAGED} (layer 1) is corrupted")
    assert path.name in message


def test_a_change_anywhere_in_a_bucket_is_detected(tmp_path) -> None:
    folder = published(tmp_path)
    path = sorted(folder.glob("bucket-*"))[1]
    for at in range(0, path.stat().st_size, 7):
        flip(path, at)
        with pytest.raises(BadWeights, match=r"version 6 of the weights: .* is corrupted"):
            load_version(folder, EXPECTED, newer_than=5)
        flip(path, at)
    load_version(folder, EXPECTED, newer_than=5)


def test_buckets_that_are_cut_off_or_missing_are_named(tmp_path) -> None:
    folder = published(tmp_path)
    path = folder / "bucket-002.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(BadWeights, match=rf"version 6 .*bucket-002\.safetensors has {len(content) - 1} bytes and not"):
        load_version(folder, EXPECTED, newer_than=5)
    path.unlink()
    with pytest.raises(BadWeights, match=r"version 6 .*bucket-002\.safetensors is missing"):
        load_version(folder, EXPECTED, newer_than=5)


def test_a_bucket_of_another_version_is_refused(tmp_path) -> None:
    folder = published(tmp_path / "a")
    other = published(tmp_path / "b", {name: tensor + 1 for name, tensor in TENSORS.items()})
    (folder / "bucket-001.safetensors").write_bytes((other / "bucket-001.safetensors").read_bytes())
    with pytest.raises(BadWeights, match=r"is corrupted"):
        load_version(folder, EXPECTED, newer_than=5)


def test_a_dropped_layer_is_named_with_its_number(tmp_path) -> None:
    without = {name: tensor for name, tensor in TENSORS.items() if ".layers.2." not in name}
    with pytest.raises(BadWeights) as caught:
        load_version(published(tmp_path, without), EXPECTED, newer_than=5)
    assert (
        "version 6 of the weights: layer 2: 4 tensors are missing: model.layers.2.input_layernorm.weight, "
        "model.layers.2.mlp.down_proj.weight, model.layers.2.mlp.up_proj.weight and 1 more"
    ) in str(caught.value)


def test_all_mismatches_with_the_model_are_reported_at_once(tmp_path) -> None:
    other = {name: tensor for name, tensor in TENSORS.items() if "norm" not in name}
    other["model.embed_tokens.weight"] = torch.zeros(3, 4)
    other[DAMAGED] = torch.zeros(4, 3, dtype=torch.bfloat16)
    other["lm_head.weight"] = torch.zeros(2)
    with pytest.raises(BadWeights) as caught:
        load_version(published(tmp_path, other), EXPECTED, newer_than=5)
    message = str(caught.value)
    for part in (
        "layer 0: 1 tensor is missing: model.layers.0.input_layernorm.weight",
        "outside of the layers: 1 tensor is missing: model.norm.weight",
        "outside of the layers: 1 tensor is not in the server's model: lm_head.weight",
        "tensor model.embed_tokens.weight has shape [3, 4] and not [4, 3]",
        f"tensor {DAMAGED} (layer 1) is bfloat16 and not float32",
        "Trainer and server must hold the same model in the same precision",
    ):
        assert part in message


@pytest.mark.parametrize("version", [3, 5])
def test_a_stale_version_is_refused(tmp_path, version) -> None:
    folder = published(tmp_path, version=version)
    with pytest.raises(BadWeights, match=rf"^version {version} of the weights is not newer than 5, which is served"):
        load_version(folder, EXPECTED, newer_than=5)


def test_weights_of_another_run_are_refused(tmp_path) -> None:
    with pytest.raises(BadWeights, match="version 6 of the weights belongs to run run-1, and this is run run-2"):
        load_version(published(tmp_path), EXPECTED, newer_than=5, run_id="run-2")


def test_a_folder_without_a_whole_index_is_refused(tmp_path) -> None:
    with pytest.raises(BadWeights, match=r"is not a complete publication of weights \(index\.json is missing\)"):
        load_version(tmp_path / "v000001", EXPECTED, newer_than=0)
    index = published(tmp_path) / INDEX_FILE
    content = json.loads(index.read_bytes())
    for damaged in (
        index.read_bytes()[:-5],
        b"[]",
        json.dumps({**content, "buckets": []}).encode(),
        json.dumps({**content, "tensors": [{**content["tensors"][0], "dtype": "float3"}]}).encode(),
    ):
        index.write_bytes(damaged)
        with pytest.raises(BadWeights, match=r"index\.json: is damaged: "):
            load_version(index.parent, EXPECTED, newer_than=0)


@pytest.mark.parametrize(
    "file",
    ["../../victim", "/tmp/victim", "bucket-000.safetensors/../x", "bucket-00.safetensors", "index.json", "a\n", ""],
)
def test_an_index_may_name_only_files_of_a_publication(tmp_path, file) -> None:
    content = dump_index(read_index(published(tmp_path)))
    content["buckets"][0]["file"] = file
    with pytest.raises(BadWeights, match=r"order: is damaged: .* is not a file name of a publication"):
        parse_index(content, "order")


@pytest.mark.parametrize("run_id", ["../../home", "a/b", "..", ".hidden", "", "a b", "a" * 101, "run-1\n"])
def test_an_index_names_a_run_that_can_be_the_name_of_a_folder(tmp_path, run_id) -> None:
    content = dump_index(read_index(published(tmp_path)))
    with pytest.raises(BadWeights, match=r"order: is damaged: .* is not a run id"):
        parse_index({**content, "run_id": run_id}, "order")


def test_served_weights_must_equal_the_published_ones() -> None:
    hashes = {name: tensor_hash(tensor) for name, tensor in TENSORS.items()}
    compare(hashes, dict(hashes), 6)
    with pytest.raises(BadWeights, match=rf"version 6 .*{DAMAGED} \(layer 1\): served with hash 0, published with "):
        compare(hashes, {**hashes, DAMAGED: "0"}, 6)
    less = {name: value for name, value in hashes.items() if ".layers.0." not in name}
    with pytest.raises(BadWeights, match="layer 0: 4 tensors are missing"):
        compare(hashes, less, 6)
    with pytest.raises(BadWeights, match="layer 0: 4 tensors are not among those published"):
        compare(less, hashes, 6)


def test_layer_numbers_are_read_from_names_of_several_models() -> None:
    assert layer_of("model.layers.12.self_attn.q_proj.weight") == 12
    assert layer_of("transformer.h.3.attn.c_attn.weight") == 3
    assert layer_of("layers.0.norm.weight") == 0
    assert layer_of("model.embed_tokens.weight") is None
    assert layer_of("model.players.0.weight") is None


def test_modules_for_launcher_and_controller_import_no_torch() -> None:
    names = ", ".join(
        f"areal_like.weights.{name}" for name in ("errors", "probe", "publication_root", "buckets", "index")
    )
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
