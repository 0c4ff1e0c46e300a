"""Plans for a described machine: `--for` and `--model-config`."""

import json
import os

import pytest

from areal_like.config.allocation import machine
from areal_like.config.problems import ConfigError
from launcher.cli import main
from launcher.plan import gpus
from launcher.plan.target_machine import parse_machine
from tests.launcher.plan.test_memory import QWEN3_06B

BIG = "gpus=8,cores=96,memory=1T,gpu_memory=80G,nodes=2"
WORDS = ("--config", "grpo.yaml", "rollout=vllm", "actor.path=some/model", "cluster=slurm", "--dry-run=json")


def answer(capsys, *words):
    assert main([*WORDS, *words]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words):
    assert main([*words]) == 2
    return capsys.readouterr().err


@pytest.fixture
def model_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_06B), encoding="utf-8")
    return tmp_path / "config.json"


def test_nothing_of_this_machine_is_in_the_plan(capsys, monkeypatch, model_config):
    monkeypatch.chdir(model_config.parent)
    flags = ("--for", BIG, "--model-config", "config.json")
    first = answer(capsys, *flags)

    def never(*_):
        raise AssertionError("this machine was inspected")

    monkeypatch.setattr(machine, "_gpus", never)
    monkeypatch.setattr(gpus, "list_gpus", never)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    monkeypatch.setattr(os, "sysconf", never)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("AREAL_LIKE_VLLM_PYTHON", "/some/python")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", "")
    assert answer(capsys, *flags) == first


def test_the_plan_uses_the_resources_of_the_target_machine(capsys, model_config):
    plan = answer(capsys, "--for", BIG, "--model-config", str(model_config))
    assert plan["machine"] == {
        "here": False,
        "gpus": 8,
        "gpu_memory_bytes": 80 << 30,
        "cores": 96,
        "memory_bytes": 1 << 40,
    }
    assert plan["allocation"]["num_gpus"] == 16
    assert {process["node"] for process in plan["processes"]} == {0, 1}
    assert sum(process["role"] == "episodes" for process in plan["processes"]) == 8
    assert plan["needs"] == []
    assert plan["memory"]["trainer"][0]["parameters"] == pytest.approx(596_000_000, rel=0.01)
    assert not [warning for warning in plan["warnings"] if "this machine" in warning]


def test_on_cpus_the_servers_get_its_cores_and_memory(capsys):
    words = ("--config", "grpo.yaml", "rollout=vllm", "--dry-run=json", "--for", "cores=64,memory=256G")
    assert main([*words]) == 0
    (server,) = [each for each in json.loads(capsys.readouterr().out)["processes"] if each["role"] == "server"]
    assert server["cores"] == list(range(len(server["cores"]))) and len(server["cores"]) > 20
    assert server["env"]["VLLM_CPU_KVCACHE_SPACE"] == "32"


def test_requested_resources_must_exist_on_the_target_machine(capsys):
    """Of each node: 8 GPUs' worth of cores and memory."""
    for cluster in ("slurm", "ray"):
        plan = answer(capsys, "--for", "gpus=8,cores=32,memory=128G,nodes=2", f"cluster={cluster}")
        reasons = {need["key"]: need["reason"] for need in plan["needs"]}
        assert "and that machine has 32" in reasons["launcher.trainer_cpus_per_gpu"]
        assert "and that machine has 128 GiB" in reasons["launcher.trainer_mem_per_gpu"]


def test_messages_name_the_target_machine(capsys):
    plan = answer(capsys, "--for", "gpus=2,cores=8,nodes=1", "allocation_mode=vllm:d2+fsdp:d2")
    assert any("has 2 GPUs (--for)" in need["reason"] for need in plan["needs"])
    plan = answer(capsys, "--for", "gpus=2,cores=8", "allocation_mode=vllm:d2+fsdp:d2", "cluster.n_gpus_per_node=4")
    assert any("on that machine, which has 2 GPUs" in need["reason"] for need in plan["needs"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus=eight,cores=96", "--for: gpus=eight is not valid; it is the GPUs of a node (0: none), from 0 to 64"),
        ("gpus=8,cores=0", "--for: cores=0 is not valid"),
        (
            "gpus=8,cores=96,memory=1X",
            "--for: memory=1X is not valid; it is the main memory of a node, such as 512G or 1T",
        ),
        ("gpus=8,cores=96,memory=1", "--for: memory=1 is not valid"),
        pytest.param(f"gpus=8,cores=96,memory={'9' * 400}T", f"--for: memory={'9' * 400}T is not", id="absurd"),
        ("gpu=8,cores=96", "--for: 'gpu' is unknown; did you mean gpus?"),
        ("gpus=8,cores", "--for: cores has no value"),
        ("cores=8,cores=9", "--for: cores is given twice"),
        ("gpus=8", "--for: cores is missing"),
        ("cores=8,gpu_memory=80G", "--for: gpu_memory is the memory of one GPU, and there is none"),
        ("", "--for: needs a value"),
        (",", "--for: '' is unknown"),
    ],
)
def test_an_invalid_description_is_reported_for_its_flag(capsys, text, message):
    lines = refused(capsys, "--config", "grpo.yaml", "--dry-run", f"--for={text}").splitlines()
    assert any(line.replace(" [command line]", "").startswith(message) for line in lines), lines


def test_all_errors_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_machine("gpus=x,cores=y,colour=red")
    assert len(caught.value.problems) == 3


def test_sizes_have_the_units_of_memory():
    host, nodes = parse_machine("gpus=1,cores=2,memory=1.5T,gpu_memory=80GiB")
    assert (host.memory_bytes, host.gpus[0].memory_bytes, nodes) == (3 << 39, 80 << 30, None)


@pytest.mark.parametrize("flag", [("--for", "cores=8"), ("--model-config", "config.json")])
def test_both_flags_need_dry_run(capsys, flag):
    assert f"{flag[0]} [command line]: is only for a plan" in refused(capsys, "--config", "grpo.yaml", *flag)


def test_the_number_of_nodes_may_be_given_only_once(capsys):
    text = refused(capsys, *WORDS, "--for", BIG, "cluster.n_nodes=4")
    problem = "--for: nodes=2, and cluster.n_nodes=4; leave one of them out"
    assert text.splitlines() == [problem, "1 problem; nothing was started."]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("[]", "is not a JSON object"),
        ("{", "is not a JSON object"),
        ("{}", "does not describe a model"),
    ],
)
def test_an_invalid_model_config_is_refused(capsys, tmp_path, content, message):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    text = refused(capsys, *WORDS, "--model-config", str(file))
    assert text.startswith(f"--model-config: {file} ") and message in text


def test_another_local_model_can_provide_the_sizes(capsys):
    memory = answer(capsys, "--for", BIG, "--model-config", "builtin:smollm2-135m")["memory"]
    assert memory["trainer"][0]["parameters"] == pytest.approx(134_500_000, rel=0.01) and not memory["unknown"]


def test_an_unknown_size_names_the_flag_that_sets_it(capsys):
    (unknown,) = answer(capsys, "--for", BIG)["memory"]["unknown"]
    assert unknown.startswith("actor.path: some/model is neither") and "--model-config FILE" in unknown


def test_a_sweep_can_be_planned_for_a_target_machine(capsys, model_config):
    words = ("--multirun", "--for", BIG, "--model-config", str(model_config), "actor.lr=1e-5,1e-4")
    assert main([*WORDS, *words]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert [plan["machine"]["cores"] for plan in plans] == [96, 96]
