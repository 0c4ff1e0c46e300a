"""More processes than a machine without a GPU can run are refused, unless oversubscription is allowed."""

import pytest

from launcher.plan.purpose import Purpose
from tests.launcher.plan.test_memory import QWEN3_06B, model_folder
from tests.support.planning import GIB, machine_with, plan_of

ALLOW = "cluster.allow_oversubscription=true"
FOURS = ("rollout=vllm", "allocation_mode=vllm:d4+fsdp:d4")


def needs(*overrides, cores, memory_gib=64, gpus=0, experiment="grpo", **rest):
    host = machine_with(gpus, cores)._replace(memory_bytes=memory_gib * GIB)
    return {need.key: need.message for need in plan_of(experiment, *overrides, host=host, **rest).needs}


def test_eight_heavy_processes_on_two_cores_are_refused_with_the_arithmetic():
    assert needs(*FOURS, cores=2)["allocation_mode"] == (
        "4 vLLM servers and 4 trainer ranks need 6 cores (1 for each vLLM server, 0.5 for each trainer rank), and this "
        f"machine has 2; use smaller sizes, or set {ALLOW}"
    )


@pytest.mark.parametrize(
    ("overrides", "cores", "key"),
    [
        (FOURS, 5, "allocation_mode"),
        (FOURS, 6, None),
        (("rollout=sglang", "rollout.backend=sglang:d2"), 2, "rollout.backend"),
        (("rollout=sglang", "rollout.backend=sglang:d2"), 3, None),
        (("rollout=vllm",), 1, None),
        (("rollout.backend=embedded:d2", "actor.backend=fsdp:d2"), 2, None),
        (("rollout.backend=embedded:d3", "actor.backend=fsdp:d2"), 2, "rollout.backend"),
        (("actor.backend=fsdp:d4",), 2, "actor.backend"),
        (("reward.name=model", "+reward.args.path=./judge"), 1, None),
    ],
)
def test_too_many_processes_are_refused_by_the_key_that_sets_their_number(overrides, cores, key):
    result = [name for name, reason in needs(*overrides, cores=cores).items() if "cores (" in reason]
    assert result == ([] if key is None else [key])


def test_supervised_training_counts_its_ranks():
    assert "model.backend" in needs("model.backend=fsdp:d8", cores=2, experiment="sft")
    assert "model.backend" not in needs("model.backend=fsdp:d2", cores=1, experiment="sft")


def test_servers_alone_are_counted_alone():
    words = ("rollout=vllm", "rollout.backend=vllm:d4")
    assert "need 4 cores" in needs(*words, cores=2, purpose=Purpose.SERVE)["rollout.backend"]


def test_workers_of_a_divided_server_count_as_processes():
    assert "2 for each vLLM server" in needs("rollout.backend=vllm:d2t2", cores=2)["rollout.backend"]


def test_programs_weights_and_cache_must_fit_into_memory(tmp_path):
    folder = model_folder(tmp_path / "m", QWEN3_06B)
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").touch()
    reason = needs(f"actor.path={folder}", cores=8, memory_gib=8)["actor.path"]
    assert reason.startswith("1 embedded server and 1 trainer rank need 1") and "this machine has 8.0 GiB" in reason
    assert "model.path" in needs(f"model.path={folder}", cores=8, memory_gib=4, experiment="sft")
    assert "model.path" not in needs(f"model.path={folder}", cores=8, memory_gib=64, experiment="sft")
    assert "actor.path" not in needs(cores=2, memory_gib=1)
    assert "actor.path" in needs("rollout=vllm", "rollout.backend=vllm:d2", cores=4, memory_gib=1)


def test_an_allowed_oversubscription_is_a_warning():
    plan = plan_of("grpo", *FOURS, ALLOW, host=machine_with(0, 2))
    assert "allocation_mode" not in {need.key for need in plan.needs}
    assert any(warning.startswith("allocation_mode: 4 vLLM servers") for warning in plan.warnings)


def test_oversubscription_is_not_checked_with_gpus_or_other_machines():
    assert "allocation_mode" not in needs(*FOURS, cores=2, gpus=8)
    assert "allocation_mode" not in needs(*FOURS, "cluster=slurm", cores=2)
