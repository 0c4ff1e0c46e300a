"""The server of a reward model: its folder, its process, and refusals before the start."""

import json
import re
from pathlib import Path

import pytest
import yaml

from areal_like.config.problems import ConfigError
from areal_like.process.run import CONFIG
from launcher.plan.auto import resolved_values
from launcher.plan.purpose import Purpose
from launcher.plan.render import render
from launcher.runs.registry import register
from launcher.runs.run_files import config_text
from launcher.supervisor.restart_policy import RestartPolicy
from tests.launcher.plan.test_run_directory import made
from tests.support.planning import loaded, machine_with, of_role, plan_of

SCORES, SPEAKS = "Qwen3ForSequenceClassification", "Qwen3ForCausalLM"
KEY = "reward.args.path"


def describe(folder: Path, architecture: str = SCORES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model.safetensors").touch()
    return folder


def words(path: object) -> tuple[str, ...]:
    return ("reward.name=model", f"+{KEY}={path}", "rollout.backend=embedded")


@pytest.fixture
def run_of_another(tmp_path: Path) -> Path:
    """A run of a reward model with two checkpoints."""
    run: Path = made(tmp_path / "runs" / "judge" / "r0001", 5, 20)
    for step in (5, 20):
        describe(run / "checkpoints" / f"step_{step:06d}")
    return run


def test_a_reward_model_is_one_more_process_after_the_servers(tmp_path):
    plan = plan_of("grpo", *words(describe(tmp_path / "judge")))
    assert plan.cannot_start == () and plan.needs == ()
    assert [process.role for process in plan.processes][2:4] == ["server", "reward"]
    (reward,) = of_role(plan, "reward")
    assert reward.command[1:4] == ("-m", "areal_like.serving.reward_model", "--run-dir")
    computing = [*of_role(plan, "server"), reward, *of_role(plan, "trainer")]
    cores = [core for process in computing for core in process.cores]
    assert len(set(cores)) == len(cores) and all(process.cores for process in computing)
    assert reward.threads == len(reward.cores) == int(reward.env["OMP_NUM_THREADS"])
    (port,) = [port for port in plan.ports if port.process == "reward/0"]
    assert (port.host, port.policy) == ("127.0.0.1", "bound")
    assert "1 reward model server" in " ".join(render(plan).split())


def test_other_rewards_have_no_reward_server():
    assert of_role(plan_of("grpo"), "reward") == [] and of_role(plan_of("sft"), "reward") == []


def test_a_reward_model_shares_the_first_servers_gpu_with_a_note(tmp_path):
    path = describe(tmp_path / "judge")
    plan = plan_of("grpo", *words(path), gpus=4)
    (reward,) = of_role(plan, "reward")
    assert reward.gpus == of_role(plan, "server")[0].gpus != ()
    assert any(warning.startswith(f"{KEY}: the reward model shares the GPU") for warning in plan.warnings)
    beside = plan_of("grpo", *words(path), "embedded.device=cpu", gpus=2)
    assert of_role(beside, "reward")[0].gpus == () and of_role(beside, "reward")[0].cores
    assert not any(warning.startswith(KEY) for warning in (*beside.warnings, *plan_of("grpo", *words(path)).warnings))


def test_to_score_saved_answers_it_has_the_first_gpu_or_all_cores_but_those_of_the_worker(tmp_path):
    path = describe(tmp_path / "judge")
    for gpus in (0, 1, 4):
        plan = plan_of("grpo", *words(path), gpus=gpus, cores=8, purpose=Purpose.REWARDS)
        assert plan.cannot_start == () and plan.needs == ()
        roles = [process.name for process in plan.processes]
        assert roles == ["guardian/0", "launcher/0", "reward/0", "episodes/0"]
        (reward,), (worker,) = of_role(plan, "reward"), of_role(plan, "episodes")
        assert reward.gpus == ((0,) if gpus else ()) and not worker.gpus
        if not gpus:
            assert len(reward.cores) == 6 and not set(reward.cores) & set(worker.cores)


def test_the_batch_script_starts_the_reward_model(tmp_path):
    slurm = ("cluster=slurm", "cluster.n_gpus_per_node=0", "launcher.slurm.container_type=none")
    plan = plan_of("grpo", *words(describe(tmp_path / "judge")), *slurm)
    script = plan.cluster["script"]
    assert script.index("start server ") < script.index("start reward ") < script.index("start trainer ")


def test_a_run_as_reward_model_is_resolved_to_its_newest_checkpoint_once(run_of_another, tmp_path):
    newest = str(run_of_another / "checkpoints" / "step_000020")
    root = f"cluster.fileroot={tmp_path / 'runs'}"
    for name in ("judge/r0001", "r0001", run_of_another):
        plan = plan_of("grpo", root, *words(name))
        assert plan.needs == ()
        assert (KEY, newest, "the newest checkpoint of judge/r0001") in plan.auto
    message = loaded("grpo", root, *words("r0001"))
    assert resolved_values(message, plan.auto)["reward"]["args"] == {"path": newest}
    assert yaml.safe_load(config_text(message, plan))["reward"]["args"] == {"path": newest}


def test_a_registered_run_can_be_named(run_of_another, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    register("judge", "r0001", run_of_another)
    assert (run_of_another / CONFIG).is_file()
    plan = plan_of("grpo", f"cluster.fileroot={tmp_path / 'other'}", *words("judge/r0001"))
    assert [resolved.value for resolved in plan.auto if resolved.key == KEY] == [
        str(run_of_another / "checkpoints" / "step_000020")
    ]


def test_a_folder_path_is_used_as_written(tmp_path):
    describe(tmp_path / "judge")
    plan = plan_of("grpo", *words("judge"), host=machine_with()._replace(directory=tmp_path))
    assert plan.needs == () and KEY not in {resolved.key for resolved in plan.auto}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("builtin:tiny-addition", rf"not a reward model \({SPEAKS}\); reward_model.yaml trains one"),
        ("speaks", rf"not a reward model \({SPEAKS}\)"),
        ("nobody/r0009", "no run has that name; give the folder"),
        ("young", "has no complete checkpoint yet"),
    ],
)
def test_a_model_that_is_no_reward_model_is_refused_before_a_start(tmp_path, path, why):
    describe(tmp_path / "speaks", SPEAKS)
    made(tmp_path / "young")
    plan = plan_of("grpo", *words(path), host=machine_with()._replace(directory=tmp_path))
    (need,) = [need for need in plan.needs if need.key == KEY]
    assert re.search(why, need.message), need.message


def test_a_reward_model_takes_a_path_and_no_other_argument():
    with pytest.raises(ConfigError, match=r"model needs it: \+reward\.args\.path=PATH"):
        loaded("grpo", "reward.name=model")
    with pytest.raises(ConfigError, match=r"reward\.args\.pth .*did you mean path"):
        loaded("grpo", "reward.name=model", f"+{KEY}=x", "+reward.args.pth=x")


def test_a_reward_model_process_is_replaced_when_it_dies():
    policy = RestartPolicy("auto", 1)
    assert [policy.decide("reward/0", -9, True, False).kind for _ in range(2)] == ["replace", "fail"]
    assert RestartPolicy("disabled", 1).decide("reward/0", 1, False, True).kind == "fail"
