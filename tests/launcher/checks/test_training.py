"""Training settings that are wrong or cannot be divided are reported by the plan."""

import pytest

from areal_like.config.checks.config_checks import refuse_config
from areal_like.config.fields import NOT_YET
from areal_like.config.problems import ConfigError
from launcher.plan.render import render
from tests.launcher.checks.test_configuration import against, needs, warned
from tests.launcher.plan.test_memory import QWEN3_06B, model_folder
from tests.support.planning import BIG_MODEL, loaded, machine_with, plan_of

UNLIKE_THE_TRAINER = [
    ("gconfig.greedy", "true"),
    ("gconfig.top_p", "0.9"),
    ("gconfig.top_k", "50"),
    ("gconfig.min_p", "0.1"),
    ("gconfig.frequency_penalty", "0.5"),
    ("gconfig.repetition_penalty", "1.1"),
    ("gconfig.min_new_tokens", "2"),
]


@pytest.mark.parametrize("words", [["algorithm=ppo"], ["algorithm=ppo", "task=sorting"]])
def test_ppo_without_a_critic_is_a_warning_with_the_experiment_that_has_one(words):
    (warning,) = [each for each in plan_of("grpo", *words).warnings if each.startswith("algorithm: ppo")]
    assert "--config ppo.yaml" in warning and "experiment=ppo critic=same_as_actor" in warning
    with_critic = ("algorithm=ppo", "experiment=ppo", "critic=same_as_actor")
    own_baseline = ("algorithm=ppo", "actor.reward_norm.mean_level=group")
    for other in (("algorithm=reinforce",), ("algorithm=grpo",), with_critic, own_baseline):
        assert not [each for each in plan_of("grpo", *other).warnings if each.startswith("algorithm")]
    assert not plan_of("ppo").warnings


def reasons(plan, key):
    return [
        obstacle.message for obstacle in plan.cannot_start if obstacle.key == key and NOT_YET not in obstacle.message
    ]


@pytest.mark.parametrize(("key", "value"), UNLIKE_THE_TRAINER)
def test_sampling_that_the_trainer_cannot_reproduce_is_refused_unless_allowed(key, value):
    plan = plan_of("grpo", f"{key}={value}")
    assert against(plan) == {key}
    assert "rollout.allow_mismatched_sampling=true" in reasons(plan, key)[0]
    assert not against(plan_of("grpo", f"{key}={value}", "rollout.allow_mismatched_sampling=true"))


@pytest.mark.parametrize(("key", "value"), UNLIKE_THE_TRAINER)
@pytest.mark.parametrize("backend", ["embedded", "vllm:d1", "sglang:d1"])
def test_a_trainer_started_by_hand_refuses_mismatched_sampling(key, value, backend):
    words = [f"{key}={value}", f"rollout.backend={backend}"]
    with pytest.raises(ConfigError) as refused:
        refuse_config(loaded("grpo", *words).config)
    (problem,) = refused.value.problems
    assert problem.key == key and "rollout.allow_mismatched_sampling=true" in problem.message
    refuse_config(loaded("grpo", *words, "rollout.allow_mismatched_sampling=true").config)


@pytest.mark.parametrize("output", ["gconfig.stop=[x]", "gconfig.stop_token_ids=[5]", "gconfig.max_new_tokens=3"])
def test_settings_that_only_end_answers_are_accepted(output):
    assert not against(plan_of("grpo", output))
    refuse_config(loaded("grpo", output).config)


def test_greedy_answers_of_a_group_are_equal():
    assert "all answers of a group are equal" in reasons(plan_of("grpo", "gconfig.greedy=true"), "gconfig.greedy")[0]


@pytest.mark.parametrize("value", ["-1", "0", "100000000", "200000000"])
def test_a_top_k_without_effect_is_accepted(value):
    assert not against(plan_of("grpo", f"gconfig.top_k={value}"))


def test_groups_of_one_answer_are_refused_with_group_statistics():
    one = ("gconfig.n_samples=1", "train_dataset.batch_size=8")
    assert "gconfig.n_samples" in against(plan_of("grpo", *one, "actor.reward_norm.mean_level=group"))
    other = plan_of("grpo", *one, "actor.reward_norm.mean_level=batch", "actor.dynamic_sampling=true")
    assert against(other) == {"actor.dynamic_sampling"}


@pytest.mark.parametrize(("experiment", "kind"), [("grpo", "sft"), ("grpo", "rw"), ("ppo", "sft"), ("sft", "rl")])
def test_rows_of_another_kind_are_refused(experiment, kind):
    assert "train_dataset.type" in against(plan_of(experiment, f"train_dataset.type={kind}"))


def test_a_step_that_cannot_be_split_is_refused():
    few = ("train_dataset.batch_size=2", "gconfig.n_samples=2")
    assert against(plan_of("grpo", *few, "actor.ppo_n_minibatches=5")) == {"actor.ppo_n_minibatches"}
    assert against(plan_of("grpo", *few, "actor.ppo_n_minibatches=4")) == set()
    assert against(plan_of("ppo", *few, "actor.mb_spec.granularity=3")) == {"actor.mb_spec.granularity"}
    assert against(plan_of("ppo", *few, "actor.mb_spec.granularity=2")) == set()
    assert against(plan_of("sft", "train_dataset.batch_size=3", "model.mb_spec.granularity=2")) == {
        "model.mb_spec.granularity"
    }


def test_replicas_divide_the_data_parallel_ranks():
    base = ("rollout.backend=embedded:d1", "actor.backend=fsdp:d4")
    assert against(plan_of("ppo", *base, "actor.fsdp.dp_replicate=3", gpus=8)) == {"actor.fsdp.dp_replicate"}
    assert against(plan_of("ppo", *base, "actor.fsdp.dp_replicate=2", gpus=8)) == set()


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["rollout.backend=vllm:d1t3", "actor.backend=fsdp:d1"], {"rollout.backend"}),
        (["rollout.backend=vllm:d1", "actor.backend=fsdp:d1t3"], {"actor.backend"}),
        (["rollout=vllm", "allocation_mode=vllm:d1t3+fsdp:d1t3"], {"allocation_mode"}),
        (["rollout.backend=vllm:d1t16", "actor.backend=fsdp:d1t2"], set()),
        (["rollout.backend=vllm:d1t12", "actor.backend=fsdp:d1"], {"rollout.backend"}),
    ],
)
def test_tensor_sizes_divide_the_heads(tmp_path, overrides, keys):
    folder = model_folder(tmp_path / "m", QWEN3_06B)
    plan = plan_of("ppo", f"actor.path={folder}", "actor.dtype=bfloat16", *overrides, gpus=32)
    assert against(plan) == keys


def test_kv_heads_are_divided_or_held_several_times(tmp_path):
    folder = model_folder(tmp_path / "m", QWEN3_06B | {"num_attention_heads": 12, "num_key_value_heads": 4})
    base = (f"actor.path={folder}", "actor.dtype=bfloat16", "actor.backend=fsdp:d1")
    (reason,) = reasons(plan_of("grpo", *base, "rollout.backend=vllm:d1t6", gpus=32), "rollout.backend")
    assert "neither divides the 4 KV heads" in reason
    assert not against(plan_of("grpo", *base, "rollout.backend=vllm:d1t12", gpus=32))


def test_a_server_over_several_nodes_cannot_start_anywhere():
    shape = ("cluster.type=slurm", "cluster.n_nodes=4", "cluster.n_gpus_per_node=8", *BIG_MODEL)
    plan = plan_of("grpo", *shape, "rollout.backend=vllm:d1t16", "actor.backend=fsdp:d8")
    assert "cannot span nodes" in reasons(plan, "rollout.backend")[0]
    assert "rollout.backend" not in needs(plan)
    assert not warned(plan, "rollout.backend")


def test_a_layout_of_several_nodes_is_not_all_on_this_machine():
    shape = ("cluster.n_nodes=2", "cluster.n_gpus_per_node=8", "rollout.backend=vllm:d8", "actor.backend=fsdp:d8")
    plan = plan_of("grpo", *BIG_MODEL, *shape)
    text = render(plan, width=500)
    assert "this machine on 2 nodes" not in text
    assert "processes on 2 nodes:" in text
    assert "needs 16 GPUs, 8 of them on this machine" in text
    assert not warned(plan, "actor.dtype")
    assert warned(plan_of("grpo", *BIG_MODEL, "rollout=embedded", host=machine_with()), "actor.dtype")


@pytest.mark.parametrize(
    ("experiment", "kind", "file"),
    [("sft", "rw", "reward_model.yaml"), ("reward_model", "sft", "sft.yaml"), ("sft", "rl", "grpo.yaml")],
)
def test_rows_of_another_type_name_the_experiment_for_them(experiment, kind, file):
    (refused,) = plan_of(experiment, f"train_dataset.type={kind}").cannot_start
    assert refused.key == "train_dataset.type"
    assert refused.message.endswith(f"; train_dataset.type={kind} is for {file}")
