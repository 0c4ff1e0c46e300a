"""The batch script for Slurm, and resource requests to Ray."""

import shutil
import subprocess

import pytest

from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.fields import NOT_YET
from areal_like.config.schema import Schema
from tests.support.planning import BIG_MODEL, of_role, plan_of

SLURM = ("cluster=slurm", "cluster.n_nodes=2", "cluster.n_gpus_per_node=4", "launcher.slurm.container_type=none")
TWO_NODES = (*SLURM, *BIG_MODEL, "rollout.backend=vllm:d2t2", "actor.backend=fsdp:d4")


def script_of(*overrides, experiment="grpo"):
    return plan_of(experiment, *(overrides or TWO_NODES)).cluster["script"]


def options(script):
    lines = (line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH"))
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    "overrides",
    [
        TWO_NODES,
        (*SLURM, *BIG_MODEL, "rollout=sglang", "launcher.slurm.srun_additional_args="),
        ("cluster=slurm", "cluster.n_gpus_per_node=0"),
        (*SLURM, "+launcher.env.ODD='a b; $(rm -rf /) \"c\"'"),
    ],
)
def test_the_script_is_valid_bash(overrides):
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run([bash, "-n"], input=script_of(*overrides), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_job_requests_the_resources_of_the_plan():
    result = options(
        script_of(*TWO_NODES, "launcher.slurm.partition=gpu", "launcher.slurm.account=me", "trial_name=t1")
    )
    assert result["job-name"] == "grpo-addition/t1"
    assert (result["nodes"], result["gres"]) == ("2", "gpu:4")
    assert (result["partition"], result["account"]) == ("gpu", "me")
    assert result["signal"] == "B:TERM@300"
    assert result["requeue"] == ""
    assert result["output"].endswith("/grpo-addition/t1/logs/slurm-%j.log")
    assert "time" not in result


def test_a_time_limit_is_passed_on():
    assert options(script_of(*TWO_NODES, "launcher.slurm.time_limit=12:00:00"))["time"] == "12:00:00"


def test_cores_and_memory_are_requested_for_the_fullest_node():
    more = ("launcher.inference_server_cpus_per_gpu=6", "launcher.trainer_cpus_per_gpu=5")
    result = options(script_of(*TWO_NODES, *more, "launcher.trainer_mem_per_gpu=1000", "rollout.num_episode_workers=2"))
    assert int(result["cpus-per-task"]) == 4 * 6 + 3 * 2
    assert result["mem"] == f"{4 * 32768 + 3 * 8192}M"


def test_each_role_has_one_srun_on_the_nodes_of_its_processes():
    starts = [line.split(" ", 3)[1:] for line in script_of().splitlines() if line.startswith("start ")]
    assert [start[0] for start in starts] == ["server", "rollout", "episodes", "trainer"]
    assert [start[1] for start in starts] == ["8", "2", "2", "4"]
    assert starts[0][2].startswith("'0 0' bash")
    assert starts[3][2].startswith("'1 1 1 1' bash")


def test_slurm_tasks_read_their_gpus_port_and_number():
    script = script_of()
    assert "values=(0,1 2,3)" in script
    assert "--port $((FIRST_PORT + 1 + SLURM_PROCID))" in script
    assert "--seed $((1 + SLURM_PROCID))" in script
    assert "--host 127.0.0.1" in script  # the engine is for its server alone
    assert 'MASTER_ADDR="${nodes[1]}"' in script
    assert "<port>" not in script
    assert "<node" not in script


def test_the_users_arguments_for_srun_are_used():
    assert "--mpi=pmi2 -K --chdir $PWD" in script_of()
    assert "--mpi=none" in script_of(*TWO_NODES, "launcher.slurm.srun_additional_args='--mpi=none'")


def test_roles_run_in_their_container_images():
    images = ("launcher.slurm.trainer_image=/t.sif", "launcher.slurm.inference_server_image=/s.sif")
    overrides = (*TWO_NODES, "launcher.slurm.container_type=apptainer", *images, "launcher.slurm.mount='/a:/b,/c:/d'")
    script = script_of(*overrides)
    assert 'apptainer exec --nv --bind /a:/b --bind /c:/d /s.sif bash -c "$server"' in script
    for role in ("rollout", "episodes", "trainer"):
        assert f'/t.sif bash -c "${role}"' in script


def test_a_refused_cluster_reports_no_missing_programs():
    plan = plan_of("grpo", *TWO_NODES, "launcher.slurm.container_type=apptainer")
    assert [obstacle.key for obstacle in plan.cannot_start] == ["cluster.type"]


def test_a_missing_image_cannot_start(monkeypatch):
    for kind in ("grpo", "sft"):  # as if Slurm were built
        monkeypatch.setattr(Schema.of(EXPERIMENTS[kind]), "rules", ())
    overrides = (*TWO_NODES, "launcher.slurm.container_type=apptainer")
    for obstacle in plan_of("grpo", *overrides).cannot_start:
        assert obstacle.message.endswith("name an image, or set launcher.slurm.container_type=none")
    keys = {obstacle.key for obstacle in plan_of("grpo", *overrides).cannot_start}
    assert {"launcher.slurm.trainer_image", "launcher.slurm.inference_server_image"} <= keys
    keys = {obstacle.key for obstacle in plan_of("sft", "cluster=slurm", "cluster.n_gpus_per_node=1").cannot_start}
    assert "launcher.slurm.trainer_image" in keys
    assert "launcher.slurm.inference_server_image" not in keys


def test_the_token_is_not_in_the_script():
    script = script_of()
    assert "AREAL_LIKE_TOKEN=" not in script
    assert "${AREAL_LIKE_TOKEN:?" in script


def test_supervised_training_on_slurm():
    plan = plan_of("sft", *SLURM, "model.backend=fsdp:d8")
    assert [trainer.node for trainer in of_role(plan, "trainer")] == [0] * 4 + [1] * 4
    assert "start trainer" in plan.cluster["script"]
    assert "start server" not in plan.cluster["script"]


def test_a_job_that_would_start_over_is_a_warning():
    plan = plan_of("grpo", *TWO_NODES, "recover.mode=disabled")
    assert any(warning.startswith("recover.mode:") for warning in plan.warnings)


def test_several_nodes_need_a_cluster():
    overrides = ("cluster.n_nodes=2", "cluster.n_gpus_per_node=2", "allocation_mode=embedded:d2+fsdp:d2")
    assert "cluster.type" in {obstacle.key for obstacle in plan_of("grpo", *overrides).cannot_start}
    on_slurm = plan_of("grpo", *overrides, *SLURM[:1]).cannot_start
    assert "cluster.type" not in {obstacle.key for obstacle in on_slurm if NOT_YET not in obstacle.message}


def test_ray_requests_resources_for_each_process():
    more = ("launcher.trainer_cpus_per_gpu=3", "launcher.trainer_mem_per_gpu=1024", "launcher.ray.address=auto")
    shape = ("cluster=ray", "cluster.n_nodes=2", "cluster.n_gpus_per_node=2")
    cluster = plan_of("grpo", *shape, *BIG_MODEL, "rollout.backend=vllm:d1t2", "actor.backend=fsdp:d2", *more).cluster
    actors = {actor["process"]: actor for actor in cluster["actors"]}
    assert actors["server/0"]["resources"] == {"CPU": 8, "GPU": 2, "memory": 2 * 32768 << 20}
    assert actors["trainer/1"]["resources"] == {"CPU": 3, "GPU": 1, "memory": 1024 << 20}
    assert [actors[name]["bundle"] for name in ("server/0", "trainer/0")] == [0, 1]
    assert (cluster["strategy"], cluster["address"]) == ("STRICT_SPREAD", "auto")
    assert cluster["bundles"][1] == {"CPU": 6, "GPU": 2, "memory": 2048 << 20}
    assert not {"guardian/0", "launcher/0"} & set(actors)
