"""Missing resources are reported before a start: GPUs, files of models, ports."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from areal_like.models import model_folder
from areal_like.process.port_check import NO_ADDRESS, why_no_port
from launcher.cli import main
from tests.support.planning import machine_with, plan_of

TINY = model_folder("builtin:tiny-addition")
HERE = machine_with()._replace(directory=Path.cwd())


def needs(*overrides, experiment="grpo", **rest) -> dict[str, str]:
    plan = plan_of(experiment, *overrides, host=rest.pop("host", HERE), **rest)
    return {need.key: need.message for need in plan.needs}


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def test_a_complete_model_folder_is_accepted(model):
    for experiment, key in (("grpo", "actor"), ("ppo", "actor"), ("sft", "model")):
        lacking = needs(f"{key}.path={model}", experiment=experiment)
        assert not {key for key in lacking if key.endswith("path") and "dataset" not in key}, lacking


@pytest.mark.parametrize(
    ("file", "key", "message"),
    [
        ("config.json", "actor.path", "has no config.json"),
        ("model.safetensors", "actor.path", "has no weights (model.safetensors); name the folder of a complete model"),
        ("tokenizer.json", "tokenizer_path", "has no tokenizer.json"),
    ],
)
def test_a_file_of_a_model_that_is_missing_is_named(model, file, key, message):
    (model / file).unlink()
    assert message in needs(f"actor.path={model}")[key]


def test_random_weights_need_no_file_of_weights(model):
    (model / "model.safetensors").unlink()
    assert "actor.init_from_scratch=true" in needs(f"actor.path={model}")["actor.path"]
    assert "actor.path" not in needs(f"actor.path={model}", "actor.init_from_scratch=true")


def test_every_file_of_an_index_must_be_there(model):
    (model / "model.safetensors").rename(model / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert "has no two.safetensors, one of 2 files of weights" in needs(f"actor.path={model}")["actor.path"]
    shutil.copy(model / "one.safetensors", model / "two.safetensors")
    assert "actor.path" not in needs(f"actor.path={model}")
    (model / "model.safetensors.index.json").write_text("{", encoding="utf-8")
    assert "a readable model.safetensors.index.json" in needs(f"actor.path={model}")["actor.path"]


def test_an_unreadable_model_config_is_reported(model):
    (model / "config.json").write_text('{"model_type":', encoding="utf-8")
    assert "config.json is not JSON" in needs(f"actor.path={model}")["actor.path"]


def test_a_separate_tokenizer_is_checked_too(model, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "has no tokenizer.json" in needs(f"tokenizer_path={tmp_path / 'empty'}")["tokenizer_path"]
    assert "there is no folder" in needs(f"tokenizer_path={tmp_path / 'nothing'}")["tokenizer_path"]
    (model / "tokenizer.json").unlink()
    assert "tokenizer_path" not in needs(f"actor.path={model}", "tokenizer_path=builtin:tiny-addition")


def test_the_embedded_engine_is_refused_on_a_missing_gpu():
    reason = needs("embedded.device=cuda")["embedded.device"]
    assert reason == "is cuda, and there is no GPU (made up); set embedded.device=auto"
    assert "embedded.device" not in needs("embedded.device=cuda", host=machine_with(2))
    assert "embedded.device" not in needs("embedded.device=cuda", "rollout=vllm")
    assert "embedded.device" not in needs("embedded.device=auto")


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_detected_and_not_disturbed(taken):
    assert why_no_port("127.0.0.1", taken) == "another program listens there"
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert why_no_port("127.0.0.1", free) == ""
    socket.create_server(("127.0.0.1", free)).close()


def test_an_address_of_another_machine_is_refused():
    assert why_no_port("192.0.2.1", 9000) == "it is no address of this machine"


def test_a_port_in_use_is_reported_by_its_key(taken):
    host = HERE._replace(why_no_port=why_no_port)
    reason = needs(f"rollout.port={taken}", host=host)["rollout.port"]
    assert reason.startswith(f"server/0 cannot listen on 127.0.0.1:{taken}: another program listens there; choose")
    words = ("actor.weight_update_mode=collective", f"weights.broadcast.port={taken}")
    assert "trainer/0 cannot listen" in needs(*words, host=host)["weights.broadcast.port"]


def test_a_port_is_checked_only_where_the_run_listens():
    def why(host: str, port: int) -> str:
        return NO_ADDRESS if host == "10.0.0.7" else ""

    here = HERE._replace(why_no_port=why)
    for port in (9000, 0):
        words = (f"rollout.port={port}", "rollout.host=10.0.0.7", "rollout.backend=embedded:d2")
        assert needs(*words, host=here)["rollout.host"].endswith(f"{NO_ADDRESS}; name an address of this machine")
        assert "rollout.host" not in needs(*words, "cluster=slurm", host=here)


def test_the_folder_of_names_must_be_writable(tmp_path):
    (tmp_path / "file").write_text("no folder")
    key = "cluster.name_resolve.nfs_record_root"
    assert "cannot write into" in needs(f"{key}={tmp_path / 'file' / 'names'}")[key]
    assert key not in needs()


def test_a_start_is_refused_by_key_before_any_file_is_written(tmp_path, monkeypatch, capsys, model, taken):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (model / "model.safetensors").unlink()
    words = ("--config", "grpo.yaml", "embedded.device=cuda", f"rollout.port={taken}", "actor.path=./model")
    assert main([*words]) == 2
    text = capsys.readouterr().err
    for key in ("actor.path", "embedded.device", "rollout.port"):
        assert any(line.startswith(f"{key} [") for line in text.splitlines()), text
    assert "Traceback" not in text and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("named", ["{root}/sft-addition/mine", "sft-addition/mine", "mine"])
def test_a_run_as_a_model_path_names_its_newest_checkpoint(tmp_path, named):
    run = tmp_path / "sft-addition" / "mine"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text("experiment_name: sft-addition\n")
    words = (f"actor.path={named.format(root=tmp_path)}", f"cluster.fileroot={tmp_path}")
    host = machine_with()._replace(directory=tmp_path)

    def messages():
        return {each.key: each.message for each in plan_of("grpo", *words, host=host).needs}

    assert "has no complete checkpoint yet" in messages()["actor.path"]
    for step in (3, 12):
        checkpoint = run / "checkpoints" / f"step_{step:06d}"
        checkpoint.mkdir()
        (checkpoint / ".complete").touch()
    assert messages()["actor.path"].endswith(f"its newest checkpoint is actor.path={checkpoint}")
    assert not {"ref.path", "tokenizer_path"} & messages().keys()


def test_a_dataset_of_answers_needs_pyarrow(monkeypatch):
    key = "evaluator.save.as_dataset"
    assert key not in needs(f"{key}=true")
    monkeypatch.setattr("launcher.checks.missing.find_spec", lambda name: None)
    assert "needs the package pyarrow" in needs(f"{key}=true")[key] and key not in needs()
