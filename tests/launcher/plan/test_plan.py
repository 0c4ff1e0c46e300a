"""The whole plan: plain data, deterministic, and without side effects."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal_like.config.allocation import Machine
from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from launcher.plan.build import build_plan
from launcher.plan.render import render
from tests.support.planning import ROOT, loaded, machine_with, of_role, plan_of

EXPERIMENTS = ("grpo", "ppo", "sft", "reward_model")
PARTS = (
    *("version", "experiment", "command", "file", "run_dir", "changed", "allocation", "processes", "ports", "batch"),
    *("memory", "warnings", "cannot_start", "beaten_body_values"),
)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_plan_is_plain_json_with_every_part(experiment):
    data = plan_of(experiment).to_json()
    assert set(PARTS) <= set(data)
    assert json.loads(json.dumps(data)) == data
    assert data["experiment"] == experiment
    assert data["version"] == 1


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_same_configuration_on_the_same_machine_gives_the_same_plan(experiment):
    file = ROOT / "experiments" / f"{experiment}.yaml"
    first, second = (build_plan(load(file), host=machine_with(4)).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_records_have_the_promised_fields():
    data = plan_of("grpo", gpus=2).to_json()
    assert set(data["changed"][0]) == {"key", "value", "where", "default", "beaten"}
    expected = {"role", "index", "node", "gpus", "cores", "threads", "command", "env", "log"}
    assert all(set(process) == expected for process in data["processes"])
    assert set(data["allocation"]["rollout"]) == {"backend", "dims", "world_size"}
    assert all({"key", "reason"} <= set(obstacle) for obstacle in data["cannot_start"])


def test_changed_values_name_their_source_and_the_old_value():
    plan = plan_of("grpo", "actor.optimizer.lr=1e-4")
    setting = next(setting for setting in plan.changed if setting.key == "actor.optimizer.lr")
    assert (setting.value, setting.default) == (1e-4, 2e-5)
    assert setting.where == "override actor.optimizer.lr=1e-4"
    assert [beaten.value for beaten in setting.beaten] == [3e-4]
    assert "grpo.yaml:" in setting.beaten[0].where


def test_file_values_replaced_by_a_command_line_group_are_listed(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "defaults: [actor: tiny, task: addition, _self_]\nexperiment_name: x\nactor:\n  dtype: bfloat16\n", "utf-8"
    )
    assert build_plan(load(file), host=machine_with()).beaten_body_values == ()
    (beaten,) = build_plan(load(file, ["actor=tiny"]), host=machine_with()).beaten_body_values
    assert (beaten.key, beaten.written, beaten.value) == ("actor.dtype", "bfloat16", "float32")
    assert beaten.where.endswith("own.yaml:4")
    assert "conf/actor/tiny.yaml" in beaten.by
    assert "own.yaml:4" in render(build_plan(load(file, ["actor=tiny"]), host=machine_with()))


def test_planning_creates_nothing(tmp_path):
    plan_of("grpo", f"cluster.fileroot={tmp_path / 'runs'}")
    assert list(tmp_path.iterdir()) == []


def test_a_machine_alone_is_enough():
    plan = build_plan(loaded("grpo"), Machine(4, 32, "made up", ()))
    assert len(of_role(plan, "trainer")) == 2
    assert {gpu for process in plan.processes for gpu in process.gpus} == {0, 1, 2, 3}


def test_nothing_heavy_is_imported():
    code = (
        "import sys; import launcher.plan; from launcher.plan.build import build_plan;"
        "heavy = {'torch', 'transformers', 'hydra', 'omegaconf', 'yaml', 'numpy', 'asyncio', 'aiohttp', 'ray'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_of_the_plan_is_long():
    sizes = {file.name: len(file.read_text().splitlines()) for file in (ROOT / "launcher" / "plan").glob("*.py")}
    assert max(sizes.values()) < 300, sizes


@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout=vllm", "actor=qwen3_0_6b", "cluster=slurm", "cluster.n_nodes=2", "cluster.n_gpus_per_node=8"),
        ("rollout=sglang", "actor=qwen2_5_1_5b", "cluster=ray", "cluster.n_gpus_per_node=8"),
        ("rollout.backend=vllm:d2t2", "actor=smollm2_135m", "actor.backend=fsdp:d2t2"),
        ("rollout=embedded", "embedded.device=cpu"),
    ],
)
def test_the_settings_of_the_readme_can_be_planned(overrides):
    plan = plan_of("grpo", *overrides, gpus=8)
    assert plan.processes
    assert render(plan)


def test_an_impossible_allocation_is_a_problem_of_the_configuration():
    with pytest.raises(ConfigError, match=r"rollout\.backend .*embedded:d1t2 is not possible"):
        plan_of("grpo", "rollout.backend=embedded:d1t2", gpus=8)


def test_the_command_can_be_entered_again():
    plan = plan_of("grpo", "gconfig.stop=[a b]", "actor.optimizer.lr=1e-4")
    assert plan.command.startswith("python -m launcher --config ")
    assert "'gconfig.stop=[a b]'" in plan.command


def test_the_command_contains_replace():
    assert "--replace" in plan_of("grpo", replace_existing=True).command


def test_a_relative_fileroot_belongs_to_the_working_directory():
    host = machine_with()._replace(directory=Path("/somewhere/else"))
    assert plan_of("grpo", "trial_name=t1", host=host).run_dir == "/somewhere/else/runs/grpo-addition/t1"
