"""Effects of keys on the plan of the command line."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from docs.make.key_homes import Home, areal_homes

ROOT = Path(__file__).parents[2]
REINFORCE = "experiment_name: demo\ntrial_name: first\nactor:\n  path: some/model\ntrain_dataset:\n  path: some/data\n"
SUPERVISED = "experiment_name: demo\ntrial_name: first\nmodel:\n  path: some/model\ntrain_dataset:\n  path: some/data\n"
FILES = {
    "grpo": REINFORCE,
    "ppo": REINFORCE + "critic:\n  ppo_n_minibatches: 1\n",
    "sft": SUPERVISED + "  type: sft\n",
    "reward_model": SUPERVISED + "  type: rw\n",
}
EXPERIMENTS = tuple(FILES)
FACTS = {"experiment_name": "experiment_name", "trial_name": "trial_name"}
"""Last word of a copy -> the key that it is a copy of."""


@cache
def dry_run(experiment: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """A dry run in a fresh folder, on a machine without GPUs."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{experiment}.yaml"
        file.write_text(FILES[experiment], encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "XDG_STATE_HOME": folder}
        command = [sys.executable, "-m", "launcher", "--config", file.name, *overrides, "--dry-run=json"]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def plan(experiment: str, *overrides: str) -> dict[str, Any]:
    done = dry_run(experiment, *overrides)
    assert done.returncode == 0, done.stderr
    contents: dict[str, Any] = json.loads(done.stdout)
    return contents


def run_dir(experiment: str, *overrides: str) -> tuple[str, ...]:
    return Path(plan(experiment, *overrides)["run_dir"]).parts


# The names of a run


@pytest.mark.shows("experiment_name")
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_name_names_the_run_directory(experiment: str) -> None:
    assert run_dir(experiment)[-2:] == ("demo", "first")
    assert run_dir(experiment, "experiment_name=other")[-2:] == ("other", "first")


@pytest.mark.shows("trial_name")
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_trial_name_names_the_run_directory(experiment: str) -> None:
    assert run_dir(experiment, "trial_name=second")[-2:] == ("demo", "second")
    assert run_dir(experiment, "trial_name=auto")[-2:] == ("demo", "r0001")


@pytest.mark.shows("cluster.fileroot")
def test_fileroot_contains_the_run_directory(tmp_path: Path) -> None:
    assert run_dir("grpo", f"cluster.fileroot={tmp_path}/elsewhere") == (tmp_path / "elsewhere/demo/first").parts
    assert run_dir("grpo")[-3:] == ("runs", "demo", "first")


def copies() -> dict[str, Home]:
    """Every section's own copy of a name, at each home of AReaL's keys."""
    homes_by_path = {
        home.path: home
        for (_, key), homes in areal_homes().items()
        for home in homes
        if key in FACTS and home.path not in FACTS.values()
    }
    return dict(sorted(homes_by_path.items()))


def copies_of(experiment: str) -> list[str]:
    return [path for path, home in copies().items() if experiment in home.experiments]


def fact_of(path: str) -> str:
    return FACTS[path.rpartition(".")[2]]


def with_other_copies(experiment: str) -> subprocess.CompletedProcess[str]:
    return dry_run(experiment, *(f"{path}=another" for path in copies_of(experiment)))


def with_equal_copies(experiment: str) -> subprocess.CompletedProcess[str]:
    values = {"experiment_name": "demo", "trial_name": "first"}
    return dry_run(experiment, *(f"{path}={values[fact_of(path)]}" for path in copies_of(experiment)))


@pytest.mark.shows("{path}")
@pytest.mark.parametrize("path", copies())
def test_a_copy_must_agree(path: str) -> None:
    for experiment in copies()[path].experiments:
        refused = with_other_copies(experiment)
        assert refused.returncode == 2
        lines = [line for line in refused.stderr.splitlines() if line.startswith((f"{path} ", f"{path}:"))]
        assert len(lines) == 1, refused.stderr
        assert fact_of(path) in lines[0].removeprefix(path)
        accepted = with_equal_copies(experiment)
        assert accepted.returncode == 0, accepted.stderr


@pytest.mark.shows("{key}")
@pytest.mark.parametrize(("engine", "key"), [("vllm", "vllm.model"), ("sglang", "sglang.model_path")])
def test_the_served_model_must_be_the_trained_one(engine: str, key: str) -> None:
    backend = ("cluster.n_gpus_per_node=2", f"rollout.backend={engine}:d1")
    refused = dry_run("grpo", *backend, f"{key}=another/model")
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith(f"{key} ")]
    assert "actor.path" in line
    assert dry_run("grpo", *backend, f"{key}=some/model").returncode == 0


# What runs where


def engines(contents: dict[str, Any]) -> dict[str, int]:
    """role -> number of its processes, of those that an allocation places on devices."""
    roles = [process["role"] for process in contents["processes"]]
    return {role: roles.count(role) for role in ("server", "trainer") if role in roles}


def devices(contents: dict[str, Any]) -> list[tuple[int, int]]:
    """(node, GPU) of every process that has GPUs."""
    return [(process["node"], gpu) for process in contents["processes"] for gpu in process["gpus"]]


@pytest.mark.shows("allocation_mode")
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_allocation_mode_places_servers_and_trainer(experiment: str) -> None:
    if experiment in ("grpo", "ppo"):
        one = plan(experiment, "allocation_mode=sglang:d3+fsdp:d2", "cluster.n_gpus_per_node=8")
        other = plan(experiment, "allocation_mode=vllm:d1t2+fsdp:d4", "cluster.n_gpus_per_node=8")
        assert (engines(one), len(devices(one))) == ({"server": 3, "trainer": 2}, 5)
        assert (engines(other), len(devices(other))) == ({"server": 1, "trainer": 4}, 6)
        assert one["allocation"]["rollout"]["backend"] == "sglang"
        assert other["allocation"]["rollout"]["backend"] == "vllm"
    else:
        for ranks in (1, 3):
            contents = plan(experiment, f"allocation_mode=fsdp:d{ranks}", "cluster.n_gpus_per_node=8")
            assert engines(contents) == {"trainer": ranks}


@pytest.mark.shows("cluster.n_nodes")
def test_n_nodes_spreads_the_processes() -> None:
    for nodes in (1, 2, 3):
        overrides = ("rollout.backend=vllm", "cluster.type=slurm", "cluster.n_gpus_per_node=4")
        contents = plan("grpo", *overrides, f"cluster.n_nodes={nodes}")
        assert sorted(devices(contents)) == [(node, gpu) for node in range(nodes) for gpu in range(4)]
        assert contents["cluster"]["nodes"] == nodes


@pytest.mark.shows("cluster.n_gpus_per_node")
def test_n_gpus_per_node_bounds_the_gpus_of_a_node() -> None:
    for nodes, gpus in ((1, 8), (2, 4), (4, 2)):
        overrides = ("allocation_mode=vllm:d4+fsdp:d4", "cluster.type=slurm", f"cluster.n_nodes={nodes}")
        contents = plan("grpo", *overrides, f"cluster.n_gpus_per_node={gpus}")
        assert sorted(devices(contents)) == [(node, gpu) for node in range(nodes) for gpu in range(gpus)]
        assert contents["cluster"]["gpus_per_node"] == gpus
