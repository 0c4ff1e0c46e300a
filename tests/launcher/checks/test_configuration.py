"""Settings that prevent a start, and settings that give a warning."""

import pytest

from areal_like.config.fields import NOT_YET
from launcher.plan.build import build_plan
from tests.support.planning import BIG_MODEL, load_text, machine_with, plan_of

BARE = "experiment_name: x\nactor: {{path: {path}}}\ntrain_dataset: {{path: {data}}}\n"


def against(plan):
    """Keys of what is asked for and could be nowhere; what is only not built yet is left out."""
    return {obstacle.key for obstacle in plan.cannot_start if NOT_YET not in obstacle.message}


def needs(plan):
    return {need.key for need in plan.needs}


def warned(plan, key):
    return [warning for warning in plan.warnings if warning.startswith(f"{key}:")]


@pytest.mark.parametrize("experiment", ["grpo", "ppo", "sft", "reward_model"])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_the_shipped_experiments_start_anywhere(experiment, gpus):
    plan = plan_of(experiment, gpus=gpus)
    assert against(plan) == set()
    assert plan.needs == ()


def test_a_key_without_meaning_here_is_refused_with_its_replacement():
    plan = plan_of("grpo", "scheduler.endpoint=http://other:1")
    (obstacle,) = (obstacle for obstacle in plan.cannot_start if obstacle.key == "scheduler.endpoint")
    assert "cluster.type" in obstacle.message


def test_a_refused_key_at_its_default_is_not_reported():
    assert plan_of("grpo", "scheduler.deploy_mode=separation", "sglang.torchao_config=''").cannot_start == ()
    (changed,) = plan_of("grpo", "scheduler.deploy_mode=separation", "sglang.torchao_config=int8wo").cannot_start
    assert changed.key == "sglang.torchao_config" and changed.where == "override sglang.torchao_config=int8wo"


def test_an_unsupported_value_of_a_dialect_is_reported():
    plan = build_plan(load_text(BARE.format(path="some/model", data="rows.csv")), host=machine_with())
    assert "train_dataset.path" in against(plan)


def test_an_engine_of_another_kind_is_reported():
    assert "actor.backend" in against(plan_of("grpo", "actor.backend=megatron:d2p2", gpus=8))


def test_names_in_memory_are_refused_for_runs():
    assert "cluster.name_resolve.type" in against(plan_of("grpo", "cluster.name_resolve.type=memory"))


@pytest.mark.parametrize("mode", ["megatron:d1t2p2", "megatron:d4", "sglang:d4+megatron:d1t2p2"])
def test_a_trainer_of_another_kind_is_given_one_remedy_that_can_start(mode):
    plan = plan_of("grpo", f"allocation_mode={mode}", "rollout.backend=auto", gpus=8)
    (reason,) = [obstacle.message for obstacle in plan.cannot_start if "megatron" in obstacle.message]
    assert "fsdp:d4" in reason
    assert not plan_of("grpo", "allocation_mode=fsdp:d4", gpus=8).problems


def test_a_refused_cluster_is_not_also_reported_as_missing(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    (problem,) = [problem for problem in plan_of("grpo", "cluster=slurm").problems if problem.key == "cluster.type"]
    assert "use local" in problem.message
    nodes = plan_of("grpo", "cluster.n_nodes=2", "cluster.n_gpus_per_node=2", "actor.backend=fsdp:d3", gpus=2)
    (problem,) = [problem for problem in nodes.problems if problem.key == "cluster.type"]
    assert "slurm" not in problem.message


@pytest.mark.parametrize("gpus", [0, 8])
def test_several_nodes_without_a_cluster_are_refused_by_the_key_that_asks(gpus):
    words = ("cluster.n_nodes=4", *(["cluster.n_gpus_per_node=0"] if not gpus else []))
    (problem,) = [each for each in plan_of("grpo", *words, gpus=gpus).problems if each.key.startswith("cluster.")]
    remedies = {"cluster.type": "cluster.n_nodes=1", "cluster.n_nodes": "set it to 1"}
    assert problem.key == ("cluster.type" if gpus else "cluster.n_nodes")
    assert "this machine" in problem.message and remedies[problem.key] in problem.message


def test_cluster_name_is_reported_to_have_no_effect():
    assert (
        "has no effect: it is only shown in the plan"
        in warned(plan_of("grpo", "cluster.cluster_name=big"), "cluster.cluster_name")[0]
    )
    assert not warned(plan_of("grpo"), "cluster.cluster_name")


def test_keys_set_only_by_a_base_file_give_no_warning(tmp_path):
    text = "defaults: [sft, _self_]\nexperiment_name: x\nvalid_dataset: null\n"
    assert not warned(build_plan(load_text(text), host=machine_with()), "evaluator.freq_steps")
    own = build_plan(load_text(text, "evaluator.freq_steps=5"), host=machine_with())
    assert len(warned(own, "evaluator.freq_steps")) == 1


def test_missing_gpus_are_refused():
    plan = plan_of("grpo", "cluster.n_gpus_per_node=8", "actor.backend=fsdp:d4", gpus=2)
    assert needs(plan)
    assert not any(warned(plan, key) for key in needs(plan))
    assert len(plan.processes) > 2


@pytest.mark.parametrize(
    ("overrides", "gpus", "packages", "lacking"),
    [
        (["actor.attn_impl=flash_attention_2"], 0, {"flash_attn"}, True),
        (["actor.attn_impl=flex_attention"], 0, set(), True),
        (["actor.attn_impl=flash_attention_2", "actor.dtype=bfloat16"], 2, set(), True),
        (["actor.attn_impl=flash_attention_2", "actor.dtype=float32"], 2, {"flash_attn"}, True),
        (["actor.attn_impl=flash_attention_2", "actor.dtype=bfloat16"], 2, {"flash_attn"}, False),
        (["actor.attn_impl=sdpa"], 0, set(), False),
        (["actor.attn_impl=eager"], 0, set(), False),
    ],
)
def test_missing_attention_kernels_are_refused(overrides, gpus, packages, lacking):
    plan = plan_of("grpo", *overrides, host=machine_with(gpus)._replace(packages=frozenset(packages)))
    assert ("actor.attn_impl" in needs(plan)) is lacking


def test_an_engine_that_is_not_installed_is_refused():
    host, vllm = machine_with(2), (*BIG_MODEL, "rollout=vllm")
    bare = host._replace(find_engine=nothing_is_found)
    assert "vllm.python" in needs(plan_of("grpo", *vllm, host=bare))
    assert "vllm.python" not in needs(plan_of("grpo", *vllm, host=host))
    assert not needs(plan_of("grpo", "rollout=embedded", host=bare))


def nothing_is_found(engine, output, directory, on_gpu):
    raise ValueError(f"no {engine} was found")


def test_missing_files_are_refused(tmp_path):
    bare = load_text(BARE.format(path="./no-model", data="no.jsonl"), "launcher.env_file=[no.env]")
    assert {"actor.path", "launcher.env_file", "train_dataset.path"} <= needs(build_plan(bare, host=machine_with()))
    (tmp_path / "yes.env").touch()
    assert "launcher.env_file" not in needs(plan_of("grpo", f"launcher.env_file=[{tmp_path / 'yes.env'}]"))


def test_a_model_that_would_be_downloaded_is_only_a_warning():
    plan = plan_of("grpo", "actor=qwen3_0_6b", gpus=2)
    assert "actor.path" not in needs(plan)
    assert "a start downloads it" in warned(plan, "actor.path")[0]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["actor.use_decoupled_loss=false", "rollout.max_head_offpolicyness=2"], "actor.use_decoupled_loss"),
        (["async_training=false", "rollout.max_head_offpolicyness=2"], "rollout.max_head_offpolicyness"),
        (["algorithm=maxrl", "actor.reward_bias=-0.5"], "actor.reward_bias"),
        (["algorithm=maxrl", "actor.overlong_reward_penalty=true"], "actor.overlong_reward_penalty"),
        (["actor.dtype=bfloat16"], "actor.dtype"),
        (["actor.kl_ctl=0.1", "ref.path=other/model"], "ref.path"),
    ],
)
def test_notable_settings_are_warnings(overrides, key):
    assert warned(plan_of("grpo", *overrides), key)
    assert not warned(plan_of("grpo"), key)


def test_bfloat16_is_a_warning_on_a_processor_without_instructions_for_it():
    able = machine_with()._replace(has_bfloat16=True)
    assert not warned(plan_of("grpo", "actor.dtype=bfloat16", host=able), "actor.dtype")
    assert warned(plan_of("grpo", "actor.dtype=float16", host=able), "actor.dtype")


@pytest.mark.parametrize(("engine", "key"), [("vllm", "gpu_memory_utilization"), ("sglang", "mem_fraction_static")])
def test_a_written_share_of_the_trainers_gpu_is_a_warning(engine, key):
    words = (*BIG_MODEL, f"rollout.backend={engine}:d1")
    assert warned(plan_of("grpo", *words, f"{engine}.{key}=0.9", gpus=1), f"{engine}.{key}")
    assert not warned(plan_of("grpo", *words, gpus=1), f"{engine}.{key}")
