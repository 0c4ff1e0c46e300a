"""The processes of a run: their places, devices, variables and ports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.plan.environment import parse_list
from launcher.plan.host import Gpu
from launcher.plan.placement import PlacementRequest, place_processes
from launcher.plan.render import render
from tests.support.planning import BIG_MODEL, load_text, loaded, machine_with, of_role, plan_of


def roles_of(plan):
    return [process.name for process in plan.processes]


def test_a_laptop_plan_has_one_process_of_each_role():
    plan = plan_of("grpo", cores=2)
    assert roles_of(plan) == ["guardian/0", "launcher/0", "server/0", "rollout/0", "episodes/0", "trainer/0"]
    assert of_role(plan, "server")[0].cores == (0,)
    assert of_role(plan, "trainer")[0].cores == (1,)


@pytest.mark.parametrize("experiment", ["sft", "reward_model"])
def test_supervised_training_is_the_trainer_alone(experiment):
    assert roles_of(plan_of(experiment, cores=2)) == ["guardian/0", "launcher/0", "trainer/0"]


def test_each_role_is_started_by_its_module():
    plan = plan_of("grpo", "trial_name=t1", "cluster.fileroot=/f")
    run_dir = "/f/grpo-addition/t1"
    commands = {process.role: process.command for process in plan.processes}
    assert commands["server"] == (
        *("/env/bin/python", "-m", "areal_like.serving"),
        *("--run-dir", run_dir, "--index", "0"),
    )
    assert commands["rollout"] == ("/env/bin/python", "-m", "areal_like.rollout.controller", "--run-dir", run_dir)
    assert commands["episodes"][:5] == ("/env/bin/python", "-m", "areal_like.rollout.episodes", "--run-dir", run_dir)
    assert commands["trainer"] == ("/env/bin/python", "-m", "areal_like.training.main", "--run-dir", run_dir)
    assert commands["launcher"][:3] == commands["guardian"][:3] == ("/env/bin/python", "-m", "launcher")


def test_a_plan_names_the_logs_that_a_run_would_write(tmp_path):
    words = (f"cluster.fileroot={tmp_path}", "trial_name=t1", "actor.backend=fsdp:d2")

    def logs(*more):
        return {process.name: process.log for process in plan_of("grpo", *words, *more).processes}

    folder = f"{tmp_path}/grpo-addition/t1/logs"
    none = {"guardian/0": "", "launcher/0": ""}
    assert logs() == none | {
        f"{role}/{index}": f"{folder}/{role}-{index}.log"
        for role, index in [
            ("server", 0),
            *(("episodes", n) for n in range(4)),
            ("rollout", 0),
            ("trainer", 0),
            ("trainer", 1),
        ]
    }
    assert set(logs("log.file=false").values()) == {""}
    (tmp_path / "grpo-addition" / "t1").mkdir(parents=True)
    (tmp_path / "grpo-addition" / "t1" / "attempt.json").write_text('{"attempt": 2, "step": 0, "checkpoint": null}')
    assert logs()["trainer/1"] == f"{folder}/trainer-1.attempt-3.log"
    text = render(plan_of("grpo", *words), width=200)
    assert "logs/trainer-0.attempt-3.log" in text and "guardian-0" not in text and "launcher-0" not in text


def test_trainer_ranks_have_the_environment_of_torchrun():
    ranks = of_role(plan_of("grpo", "actor.backend=fsdp:d2t2", "rollout.backend=embedded:d2", gpus=8), "trainer")
    assert [rank.env["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert [rank.env["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert {rank.env["WORLD_SIZE"] for rank in ranks} == {rank.env["LOCAL_WORLD_SIZE"] for rank in ranks} == {"4"}
    assert {rank.env["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}
    assert {rank.env["MASTER_PORT"] for rank in ranks} == {"<port>"}


@pytest.mark.shows("rollout.backend")
def test_servers_take_the_first_gpus_and_trainers_the_next():
    plan = plan_of("grpo", "rollout.backend=vllm:d2t2", *BIG_MODEL, "actor.backend=fsdp:d4", gpus=8)
    servers, trainers = of_role(plan, "server"), of_role(plan, "trainer")
    assert [server.gpus for server in servers] == [(0, 1), (2, 3)]
    assert [server.env["CUDA_VISIBLE_DEVICES"] for server in servers] == ["0,1", "2,3"]
    assert [trainer.gpus for trainer in trainers] == [(4,), (5,), (6,), (7,)]
    assert {trainer.env["CUDA_VISIBLE_DEVICES"] for trainer in trainers} == {"4,5,6,7"}


def test_processes_without_a_gpu_see_none():
    plan = plan_of("grpo", gpus=2)
    for role in ("rollout", "episodes"):
        assert {process.env["CUDA_VISIBLE_DEVICES"] for process in of_role(plan, role)} == {""}
    for process in plan_of("grpo", gpus=0).processes[2:]:
        assert process.env["CUDA_VISIBLE_DEVICES"] == "", "what torch finds where the launcher found none is not used"
    unused = plan_of("grpo", "cluster.n_gpus_per_node=0", gpus=2)
    for role in ("server", "trainer", "rollout", "episodes"):
        assert {process.env["CUDA_VISIBLE_DEVICES"] for process in of_role(unused, role)} == {""}


def test_one_gpu_is_shared():
    plan = plan_of("grpo", gpus=1)
    assert plan.allocation["shared_device"]
    assert of_role(plan, "server")[0].gpus == of_role(plan, "trainer")[0].gpus == (0,)


def test_gpus_keep_the_names_in_cuda_visible_devices():
    host = machine_with(2)._replace(gpus=(Gpu("5"), Gpu("GPU-abc")))
    plan = plan_of("grpo", host=host)
    server, trainer = of_role(plan, "server")[0], of_role(plan, "trainer")[0]
    assert (server.env["CUDA_VISIBLE_DEVICES"], server.gpus) == ("5", (5,))
    assert (trainer.env["CUDA_VISIBLE_DEVICES"], trainer.gpus) == ("GPU-abc", (1,))


def test_a_server_stays_on_one_node_and_ranks_know_their_node():
    overrides = ("cluster=slurm", "cluster.n_nodes=2", "cluster.n_gpus_per_node=4", *BIG_MODEL)
    plan = plan_of("grpo", *overrides, "rollout.backend=vllm:d1t2", "actor.backend=fsdp:d6")
    assert [server.node for server in of_role(plan, "server")] == [0]
    trainers = of_role(plan, "trainer")
    assert [trainer.node for trainer in trainers] == [0, 0, 1, 1, 1, 1]
    assert [trainer.gpus for trainer in trainers] == [(2,), (3,), (0,), (1,), (2,), (3,)]
    assert [trainer.env["LOCAL_RANK"] for trainer in trainers] == ["0", "1", "0", "1", "2", "3"]
    assert [trainer.env["LOCAL_WORLD_SIZE"] for trainer in trainers] == ["2", "2", "4", "4", "4", "4"]
    assert {trainer.env["MASTER_ADDR"] for trainer in trainers} == {"<node 0>"}


def test_servers_may_stay_on_the_cpu_beside_gpu_trainers():
    plan = plan_of("grpo", "embedded.device=cpu", gpus=2)
    (server,) = of_role(plan, "server")
    assert server.gpus == ()
    assert server.cores
    assert [trainer.gpus for trainer in of_role(plan, "trainer")] == [(0,), (1,)]


def test_cores_are_shared_and_threads_follow():
    plan = plan_of("grpo", "rollout.backend=embedded:d2", "actor.backend=fsdp:d2", cores=16)
    computing = [*of_role(plan, "server"), *of_role(plan, "trainer")]
    cores = [core for process in computing for core in process.cores]
    assert len(cores) == len(set(cores)) <= 16
    for process in computing:
        assert process.threads == len(process.cores)
        assert process.env["OMP_NUM_THREADS"] == str(process.threads)
    assert all(process.env["OMP_NUM_THREADS"] == "1" for process in of_role(plan, "episodes"))


@given(st.integers(1, 70), st.integers(0, 9), st.integers(1, 9), st.integers(0, 8), st.integers(0, 8), st.booleans())
def test_any_machine_gets_a_place_for_every_process(cores, servers, ranks, gpus, episodes, on_gpu):
    on_gpu = on_gpu and gpus > 0
    want = PlacementRequest((1 if on_gpu else 0,) * servers, ranks, on_gpu, episodes, False)
    placement = place_processes(want, gpus, machine_with(gpus, cores), loaded("grpo").config.launcher, True)
    assert (len(placement.servers), len(placement.trainers), len(placement.episodes)) == (servers, ranks, episodes)
    for process in (*placement.servers, *placement.trainers):
        assert process.threads >= 1
        assert len(process.gpus) == (1 if on_gpu else 0)
        assert set(process.cores) <= set(range(cores))
    if on_gpu:
        places = [(process.node, process.gpus) for process in (*placement.servers, *placement.trainers)]
        assert len(set(places)) == len(places)
    elif cores - min(episodes + 1 if episodes else 0, cores // 4) >= servers + ranks:
        taken = [core for process in (*placement.servers, *placement.trainers) for core in process.cores]
        assert len(set(taken)) == len(taken)


@pytest.mark.shows("rollout.server_addresses")
def test_each_attached_server_has_a_process_without_a_device():
    plan = plan_of("grpo", "rollout.server_addresses=['10.0.0.1:8000','http://h:80']", gpus=4)
    servers = of_role(plan, "server")
    assert [server.command[1:3] for server in servers] == [("-m", "areal_like.serving")] * 2
    assert [server.command[-4:] for server in servers] == [
        ("--index", "0", "--attach", "10.0.0.1:8000"),
        ("--index", "1", "--attach", "http://h:80"),
    ]
    assert [server.gpus for server in servers] == [(), ()]
    assert plan.servers == {"started": 0, "addresses": ["10.0.0.1:8000", "http://h:80"], "engine": None}
    assert [trainer.gpus for trainer in of_role(plan, "trainer")] == [(0,), (1,), (2,), (3,)]
    assert {server.env["OPENAI_API_KEY"] for server in servers} == {"<secret>"}
    assert "OPENAI_API_KEY" not in of_role(plan, "rollout")[0].env
    assert [port.policy for port in plan.ports if port.process.startswith("server")] == ["bound", "bound"]


def test_an_allocation_does_not_start_attached_servers_again():
    overrides = ("rollout.backend=auto", "allocation_mode=vllm:d2+fsdp:d2", "rollout.server_addresses=['h:1']")
    plan = plan_of("grpo", *overrides, *BIG_MODEL, gpus=4)
    assert [server.command[-2:] for server in of_role(plan, "server")] == [("--attach", "h:1")]
    assert len(of_role(plan, "trainer")) == 2


BODY = """
experiment_name: x
actor: {path: some/model}
task: {name: addition}
launcher:
  env: {A: all, B: all, OMP_NUM_THREADS: '3'}
  inference_server_env_vars: 'B=server,C=x=y'
  trainer_env_vars: 'B=trainer'
"""


@pytest.mark.shows("launcher.inference_server_env_vars", "launcher.trainer_env_vars")
def test_variables_of_the_user_reach_their_roles():
    from launcher.plan.build import build_plan

    plan = build_plan(load_text(BODY), host=machine_with())
    server, trainer, episodes = (of_role(plan, role)[0].env for role in ("server", "trainer", "episodes"))
    assert (server["A"], server["B"], server["C"]) == ("all", "server", "x=y")
    assert (trainer["A"], trainer["B"]) == ("all", "trainer")
    assert "C" not in trainer
    assert (episodes["B"], episodes["OMP_NUM_THREADS"]) == ("all", "3")


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "RANK", "MASTER_PORT", "AREAL_LIKE_TOKEN"])
def test_variables_that_place_processes_are_set_by_the_launcher(name):
    plan = plan_of("grpo", f"+launcher.env.{name}='7'", gpus=2)
    assert f"launcher.env.{name}" in {obstacle.key for obstacle in plan.cannot_start}
    assert all(process.env.get(name) != "7" for process in plan.processes)


def test_an_invalid_list_of_variables_is_refused():
    plan = plan_of("grpo", "launcher.trainer_env_vars='A=1,oops'")
    assert "launcher.trainer_env_vars" in {obstacle.key for obstacle in plan.cannot_start}
    assert parse_list("A=1, B=x=y ,") == {"A": "1", "B": "x=y"}


def test_ports_by_policy():
    assert [(port.process, port.purpose, port.policy) for port in plan_of("grpo").ports] == [
        ("server/0", "http", "bound"),
        ("rollout/0", "http", "bound"),
        ("trainer/0", "MASTER_PORT", "leased"),
    ]
    leased = plan_of("grpo", "rollout=vllm", *BIG_MODEL, "actor.weight_update_mode=collective", gpus=2).ports
    assert [(port.purpose, port.policy) for port in leased] == [
        ("http", "bound"),
        ("vllm", "leased"),
        ("http", "bound"),
        ("MASTER_PORT", "leased"),
        ("weights", "bound"),
    ]


@pytest.mark.shows("rollout.port")
def test_explicit_ports_count_up():
    """What others call; an engine behind it listens for its server alone."""
    plan = plan_of("grpo", "rollout.port=9000", "rollout.backend=vllm:d2", *BIG_MODEL, gpus=4)
    assert [port.port for port in plan.ports if port.policy == "fixed"] == [9000, 9001]
    for server in of_role(plan, "server"):
        assert server.command[server.command.index("--port") + 1] == "<port>"


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["rollout.port=65535", "rollout.backend=embedded:d2"], "rollout.port"),
        (["rollout.port=90", "weights.broadcast.port=90", "actor.weight_update_mode=nccl"], "weights.broadcast.port"),
    ],
)
def test_impossible_ports_are_refused(overrides, key):
    assert key in {obstacle.key for obstacle in plan_of("grpo", *overrides, gpus=4).cannot_start}


@pytest.mark.shows("rollout.host")
def test_servers_listen_on_loopback_unless_the_run_spans_nodes():
    local = plan_of("grpo", "rollout=vllm", *BIG_MODEL, gpus=2)
    assert {port.host for port in local.ports} == {"127.0.0.1"}
    assert "127.0.0.1" in of_role(local, "server")[0].command
    overrides = ("cluster=slurm", "cluster.n_nodes=2", "cluster.n_gpus_per_node=1", "rollout=vllm")
    wide = plan_of("grpo", *overrides, *BIG_MODEL)
    assert {port.host for port in wide.ports if port.purpose != "vllm"} == {"the node's address"}
    public = plan_of("grpo", "rollout=vllm", "rollout.host=0.0.0.0", *BIG_MODEL, gpus=2)
    assert {port.host for port in public.ports if port.process == "server/0"} == {"0.0.0.0", "127.0.0.1"}
    for plan in (wide, public):  # an engine's own routes are for its server alone
        command = of_role(plan, "server")[0].command
        assert command[command.index("--host") + 1] == "127.0.0.1"
