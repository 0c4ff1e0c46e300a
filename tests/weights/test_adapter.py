"""Adapter publications: folders that peft reads, verified without torch."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_like.weights.adapter import check_adapter, publish_adapter, read_adapter
from areal_like.weights.disk import remove_versions
from areal_like.weights.errors import BadWeights
from areal_like.weights.lora import parse_adapter_config
from areal_like.weights.probe import Probe
from areal_like.weights.verify import checkpoint_tensors
from tests.support.commands import REPOSITORY
from tests.support.embedded_adapters import RUN_ID, logprobs_by, with_peft, write_adapter
from tests.support.tiny_models import tiny_llama
from tests.support.training_runs import model_folder
from tests.training.test_lora import trained

PROBE = Probe([3, 4, 5], [-1.0, -2.0])
LAST = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"


@pytest.fixture(scope="module")
def peft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("peft") / "adapter", tiny_llama(), 1)


def publish(root: Path, source: Path, version: int = 3, **changes: Any) -> Path:
    """`changes` are of the configuration."""
    tensors = load_file(source / "adapter_model.safetensors")
    config = json.loads((source / "adapter_config.json").read_text())
    return publish_adapter(root, version, tensors.items(), {**config, **changes}, PROBE, RUN_ID)


def test_peft_reads_the_trainers_adapter(tmp_path: Path) -> None:
    engine = trained(model_folder(tmp_path, "qwen3"))
    assert engine.adapter is not None
    exported = dict(engine.export_weights(adapter_only=True))
    folder = publish_adapter(tmp_path / "w", 0, exported.items(), engine.adapter.peft_config, PROBE, RUN_ID)
    assert folder.name == "v000000"
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "index.json",
    }
    publication = read_adapter(folder, -1, RUN_ID, 0)
    assert (publication.version, publication.probe) == (0, PROBE)
    assert [info.name for info in publication.files.infos] == list(exported)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "qwen3")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "qwen3")
    merged.load_state_dict({name: tensor.clone() for name, tensor in engine.export_weights()}, strict=False)
    by_peft = logprobs_by(with_peft(plain, folder), [3, 9, 1, 7, 22])
    assert by_peft == pytest.approx(logprobs_by(merged, [3, 9, 1, 7, 22]), abs=1e-5)
    check_adapter(publication, checkpoint_tensors(tmp_path / "qwen3"))


def test_an_adapter_is_verified_without_torch(tmp_path: Path, peft_folder: Path) -> None:
    folder = publish(tmp_path, peft_folder)
    model = tmp_path / "model"
    tiny_llama().save_pretrained(model)
    program = f"""
import sys
from pathlib import Path
from areal_like.weights.adapter import check_adapter, read_adapter
from areal_like.weights.verify import checkpoint_tensors
publication = read_adapter(Path({str(folder)!r}), 2, {RUN_ID!r}, 3)
check_adapter(publication, checkpoint_tensors(Path({str(model)!r})))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def flip_last_byte(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut_short(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def change_strength(folder: Path) -> None:
    file = folder / "adapter_config.json"
    file.write_text(file.read_text().replace('"lora_alpha": 8', '"lora_alpha": 9'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_last_byte, rf"version 3 of the weights: tensor {LAST} \(layer 1\) is corrupted"),
        (cut_short, "bucket adapter_model.safetensors has .* bytes and not"),
        (change_strength, "adapter_config.json is corrupted"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json is missing"),
        (lambda folder: (folder / "index.json").unlink(), "not a complete publication"),
    ],
)
def test_a_damaged_adapter_file_is_refused_and_named(
    tmp_path: Path, peft_folder: Path, damage: Callable[[Path], None], words: str
) -> None:
    folder = publish(tmp_path, peft_folder)
    read_adapter(folder, 2, RUN_ID)
    damage(folder)
    with pytest.raises(BadWeights, match=words):
        read_adapter(folder, 2, RUN_ID)


def test_a_version_out_of_turn_or_of_another_run_is_refused(tmp_path: Path, peft_folder: Path) -> None:
    folder = publish(tmp_path, peft_folder)
    with pytest.raises(BadWeights, match=r"version 3 .* not newer than 3, which is served: it is stale"):
        read_adapter(folder, 3, RUN_ID)
    with pytest.raises(BadWeights, match="belongs to run run-1, and this is run run-2"):
        read_adapter(folder, 2, "run-2")
    with pytest.raises(BadWeights, match="holds version 3 of the weights and not 4"):
        read_adapter(folder, 2, RUN_ID, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 3}, "layer 2: 14 tensors are missing"),
        ({"num_hidden_layers": 1}, "layer 1: 14 tensors are not in target_modules"),
        ({"intermediate_size": 96}, r"layers\.0\.mlp\.\S+ \(layer 0\) has shape"),
    ],
)
def test_an_adapter_for_another_model_is_refused_by_the_names_of_its_checkpoint(
    tmp_path: Path, peft_folder: Path, changes: dict[str, Any], words: str
) -> None:
    tiny_llama(**changes).save_pretrained(tmp_path / "model")
    publication = read_adapter(publish(tmp_path / "w", peft_folder), 2)
    with pytest.raises(BadWeights, match=f"version 3 of the weights: .*{words}"):
        check_adapter(publication, checkpoint_tensors(tmp_path / "model"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "kind IA3; only LORA"),
        ({"bias": "all"}, "bias=all"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa, which changes the model's weights"),
        ({"r": 0}, "r=0 and lora_alpha=8"),
        ({"target_modules": []}, r"target_modules=\[\]"),
        ({"modules_to_save": ["norm"]}, r"modules_to_save=\['norm'\]: .*weight_update_mode disk"),
    ],
)
def test_an_adapter_configuration_that_cannot_be_served_is_refused(changes: dict[str, Any], words: str) -> None:
    sound = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    assert parse_adapter_config(sound, "it").scale == 2
    assert parse_adapter_config({**sound, "use_rslora": True}, "it").scale == 4
    with pytest.raises(BadWeights, match=f"^it: adapter_config.json .*{words}"):
        parse_adapter_config({**sound, **changes}, "it")


def test_a_publication_that_fails_leaves_the_one_before(tmp_path: Path, peft_folder: Path) -> None:
    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", torch.zeros(4, 32)
        raise RuntimeError("the trainer dies here")

    folder = publish(tmp_path, peft_folder)
    with pytest.raises(RuntimeError, match="dies here"):
        publish_adapter(tmp_path, 4, tensors(), {}, PROBE, RUN_ID)
    assert list(tmp_path.iterdir()) == [folder]
    assert read_adapter(folder, 2).version == 3
    publish(tmp_path, peft_folder, version=4)
    remove_versions(tmp_path, keep={4})
    assert [one.name for one in tmp_path.iterdir()] == ["v000004"]
