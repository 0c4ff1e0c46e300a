"""What is there and checked and not built yet is refused before anything starts: all at once, each by its key."""

import pytest

from areal_like.config.checks.not_built import (
    MODEL_RULES,
    NOT_BUILT_SECTIONS,
    NOT_YET,
    RUN_RULES,
    SUPERVISED_RULES,
    not_built_problems,
    refuse_not_built,
)
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from launcher.commands.run import refuse as refuse_start
from launcher.plan.render import render
from tests.support.planning import loaded, plan_of


def refused(experiment, *overrides):
    """Key -> why, by the configuration alone, as a trainer that was started by hand sees it."""
    return dict(not_built_problems(loaded(experiment, *overrides).config))


@pytest.mark.parametrize("experiment", ["grpo", "ppo", "sft", "reward_model"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_what_we_ship_is_let_through(experiment, gpus):
    assert plan_of(experiment, gpus=gpus).cannot_start == ()
    assert refused(experiment) == {}


SETTINGS = [
    "cluster.type=slurm",
    "cluster.name_resolve.type=etcd3",
    "rollout.mask_env_responses=false",
    "rollout.trajectory_strategy=branching",
    "environments.train=[{id: some/env}]",
    "environments.mix.strategy=concatenate",
    "recover.skip_curriculum=true",
    "log.data=true",
    "log.environment_level=error",
    "curriculum.type=simple",
    "curriculum.seed=5",
    "curriculum.easy_border=0.7",
    "evaluator.benchmarks.environments=[{id: some/env}]",
    "evaluator.benchmarks.gconfig.temperature=0.1",
    "evaluator.benchmarks.save.hf.private=true",
    "actor.model_impl=liger_kernel",
    "actor.debug.num_layers=1",
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_key_is_refused_by_its_name_with_what_to_take(setting):
    result = refused("grpo", setting, "rollout.backend=embedded")
    (key,) = result
    assert setting.startswith(key)
    assert NOT_YET in result[key]
    assert any(word in result[key] for word in ("; use ", "; set it to ", "; leave it out")), result[key]
    assert (key, result[key]) in [obstacle[:2] for obstacle in plan_of("grpo", setting).cannot_start]


@pytest.mark.parametrize(
    "setting",
    [
        "model.model_impl=custom",
        "evaluator.n_samples=2",
        "log.data=true",
    ],
)
def test_so_is_one_of_supervised_training(setting):
    (key,) = refused("sft", setting)
    assert setting.startswith(key)


def test_every_rule_has_a_test():
    tried = [setting.partition("=")[0] for setting in SETTINGS]
    rules = [*RUN_RULES, *SUPERVISED_RULES]
    rules += [rule._replace(key=f"actor.{rule.key}") for rule in MODEL_RULES]
    keys = [rule.key for rule in rules if rule not in SUPERVISED_RULES]
    assert not [key for key in keys if not any(name.startswith(key) for name in tried)]


def test_the_keys_of_the_rules_exist():
    trees = [Schema.of(EXPERIMENTS[kind]) for kind in ("ppo", "sft")]
    names = [name for tree in trees for name in (*tree.keys, *tree.sections)]
    rules = [rule.key for rule in (*RUN_RULES, *SUPERVISED_RULES)] + [f"actor.{rule.key}" for rule in MODEL_RULES]
    assert not {*rules, *NOT_BUILT_SECTIONS} - set(names)


@pytest.mark.parametrize(
    "setting",
    [
        "gconfig.top_k=0",
        "gconfig.top_k=200000000",
        "gconfig.top_p=1",
        "gconfig.stop=[]",
        "gconfig.stop=[x]",
        "gconfig.stop_token_ids=[5]",
        "weights.broadcast.timeout_s=1200",
        "actor.weight_update_mode=filesystem",
        "actor.attn_impl=flex_attention",
        "stats_logger.wandb.log_extras.interval=5",
        "recover.skip_dataloader=true",
        "recover.skip_scheduler=true",
        "recover.skip_progress=true",
        "weights.save_format=torch",
        "weights.save_sharded=true",
    ],
)
def test_a_value_that_asks_for_nothing_or_for_what_is_there_is_let_through(setting):
    assert refused("grpo", setting) == {}


def test_a_default_is_never_refused():
    for kind in ("grpo", "sft"):
        tree = Schema.of(EXPERIMENTS[kind])
        texts = [f"{path}={tree.keys[path].default}" for path in NOT_BUILT_SECTIONS if path in tree.keys]
        assert refused(kind, *texts, "curriculum.seed=1" if kind == "grpo" else "seed=1") == {}


def test_a_model_that_is_split_other_than_by_data_is_refused():
    assert "use fsdp:d2" in refused("grpo", "actor.backend=fsdp:d1t2")["actor.backend"]
    assert refused("grpo", "actor.backend=fsdp:d2") == {}
    plan = plan_of("grpo", "allocation_mode=embedded:d1+fsdp:d1t2", gpus=4)
    (reason,) = [obstacle.reason for obstacle in plan.cannot_start if obstacle.key == "actor.backend"]
    assert "use fsdp:d2" in reason


def test_the_reference_is_checked_too_and_what_it_follows_is_reported_once():
    assert refused("grpo", "ref.model_impl=custom") == {}
    assert refused("grpo", "ref.model_impl=custom", "actor.kl_ctl=0.1").keys() == {"ref.model_impl"}
    assert refused("grpo", "actor.model_impl=custom", "actor.kl_ctl=0.1").keys() == {"actor.model_impl"}


def test_a_group_is_a_prompt_with_its_answers(tmp_path):
    (tmp_path / "turns.py").write_text("class Turns:\n    async def run(self, episode, row):\n        return None\n")
    own = f"workflow.name={tmp_path / 'turns.py'}:Turns"
    assert refused("grpo", own, "actor.group_size=3").keys() == {"actor.group_size"}
    assert refused("grpo", own, "actor.adv_norm.group_size=3").keys() == {"actor.adv_norm.group_size"}


def test_rewards_are_measured_against_their_group_once():
    assert refused("grpo", "actor.advantage.leave_one_out=true", "actor.reward_norm.mean_level=group").keys() == {
        "actor.advantage"
    }
    assert refused("grpo", "actor.advantage.leave_one_out=true", "actor.reward_norm=null") == {}


def test_all_of_them_are_said_at_once_at_a_start_and_by_a_trainer():
    words = ("actor.model_impl=custom", "log.data=true", "curriculum.type=simple")
    messages = loaded("grpo", *words)
    with pytest.raises(ConfigError) as by_trainer:
        refuse_not_built(messages.config)
    with pytest.raises(ConfigError) as at_start:
        refuse_start(plan_of("grpo", *words).problems)
    for error in (by_trainer.value, at_start.value):
        assert {problem.key for problem in error.problems} == {word.partition("=")[0] for word in words}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["train_dataset.num_workers=4"], "train_dataset.num_workers"),
        (["valid_dataset.pin_memory=true"], "valid_dataset.pin_memory"),
        (["valid_dataset.batch_size=7"], "valid_dataset.batch_size"),
        (["valid_dataset.shuffle=false"], "valid_dataset.shuffle"),
        (["train_dataset.loss_on=all"], "train_dataset.loss_on"),
        (["valid_dataset=null", "evaluator.freq_steps=5"], "evaluator.freq_steps"),
        (["evaluator.pin=true", "async_training=false"], "evaluator.pin"),
        (["async_training=false", "rollout.schedule_policy=least_loaded"], "rollout.schedule_policy"),
        (
            ["async_training=false", "rollout.oversampling_factor=2", "actor.dynamic_sampling=false"],
            "rollout.oversampling_factor",
        ),
        (["stats_logger.wandb.log_extras.samples=false"], "stats_logger.wandb.log_extras.samples"),
        (["actor.use_decoupled_loss=false", "actor.behav_imp_weight_cap=5"], "actor.behav_imp_weight_cap"),
        (["actor.behav_imp_weight_mode=truncate"], "actor.behav_imp_weight_mode"),
        (["actor.loss=importance_sampling", "actor.c_clip=3"], "actor.c_clip"),
        (["actor.kl_in=loss"], "actor.kl_in"),
        (["actor.log_agent_stats=true"], "actor.log_agent_stats"),
        (["actor.log_agent_stats_keys=[turns]"], "actor.log_agent_stats_keys"),
        (["actor.optimizer.hysteresis=3"], "actor.optimizer.hysteresis"),
        (
            ["actor.use_decoupled_loss=false", "actor.behav_imp_weight_level=sequence"],
            "actor.behav_imp_weight_level",
        ),
        (["actor.ratio.length_norm=true"], "actor.ratio.length_norm"),
        (["actor.kl_ctl=0", "actor.kl_estimator=k3"], "actor.kl_estimator"),
        (["actor.overlong_penalty_factor=0.5"], "actor.overlong_penalty_factor"),
        (["actor.overlong_tokens=2"], "actor.overlong_tokens"),
        (["train_dataset.path=rows.jsonl"], "task.name"),
        (
            ["actor.gradient_checkpointing=false", "actor.activation_checkpointing.freq=2"],
            "actor.activation_checkpointing",
        ),
        (["actor.lora_rank=8"], "actor.lora_rank"),
        (["actor.lora_alpha=32"], "actor.lora_alpha"),
        (["actor.target_modules=[q_proj]"], "actor.target_modules"),
        (["actor.lora_dropout=0.1"], "actor.lora_dropout"),
        (["actor.lora_modules_to_save=[lm_head]"], "actor.lora_modules_to_save"),
    ],
)
def test_what_changes_nothing_of_what_is_learnt_is_told_and_stops_nothing(overrides, key):
    plan = plan_of("grpo", *overrides)
    assert [warning for warning in plan.warnings if warning.startswith(f"{key}: ")]
    assert plan.cannot_start == ()
    assert not [warning for warning in plan_of("grpo").warnings if warning.startswith(f"{key}: ")]


def test_keys_of_a_row_loader_are_reported_where_they_have_no_effect():
    for experiment in ("grpo", "sft"):
        words = ("valid_dataset.shuffle=false", "valid_dataset.pin_memory=true", "train_dataset.pin_memory=true")
        keys = {warning.partition(":")[0] for warning in plan_of(experiment, *words).warnings}
        assert "valid_dataset.shuffle" in keys and "train_dataset.pin_memory" not in keys
        assert ("valid_dataset.pin_memory" in keys) == (experiment == "grpo")


def test_what_a_file_sets_for_its_own_algorithm_is_no_warning_beside_another():
    keys = "actor.eps_clip_higher", "actor.use_decoupled_loss"
    plan = plan_of("grpo", "algorithm=prime_rl")
    assert not [warning for warning in plan.warnings if warning.startswith(keys)]
    (unread,) = plan.unread_body_values
    assert (unread.key, unread.reason) == (keys[0], "has no effect: actor.loss is importance_sampling")
    assert "values of your file that the chosen algorithm or engine does not read" in render(plan)
    typed = plan_of("grpo", "algorithm=prime_rl", "actor.eps_clip_higher=0.3", "actor.recompute_logprob=true")
    assert len([warning for warning in typed.warnings if warning.startswith(keys)]) == 2
    assert plan_of("grpo").unread_body_values == typed.unread_body_values == ()


def test_keys_of_an_engine_that_does_not_run_are_one_warning():
    words = ("sglang.enable_nan_detection=true", "vllm.seed=3")
    plan = plan_of("grpo", *words, "rollout=embedded")
    (warning,) = [each for each in plan.warnings if each.startswith(("sglang.", "vllm."))]
    assert warning == ("sglang.enable_nan_detection, vllm.seed: have no effect: embedded is the engine that serves")
    assert not [each for each in plan_of("grpo", words[0], "rollout=sglang").warnings if each.startswith("sglang.")]
    (alone,) = [each for each in plan_of("grpo", words[0]).warnings if each.startswith("sglang.")]
    assert alone == "sglang.enable_nan_detection: has no effect: embedded is the engine that serves"


def test_keys_of_adapters_have_an_effect_where_there_are_adapters():
    messages = plan_of("grpo", "actor.use_lora=true", "actor.lora_rank=8", "actor.lora_alpha=32").warnings
    assert not [each for each in messages if each.startswith("actor.lora_")]


@pytest.mark.parametrize(
    ("experiment", "overrides", "message"),
    [
        ("sft", ["valid_dataset=null"], "has no effect"),
        ("sft", [], "only brings the rows of valid_dataset"),
        ("grpo", ["valid_dataset=null", "reward.name=null"], "only brings rewards"),
        ("grpo", ["reward.name=null"], "only brings rewards and the rows of valid_dataset"),
    ],
)
def test_a_task_beside_rows_of_a_file_says_what_is_left_of_it(experiment, overrides, message):
    plan = plan_of(experiment, "train_dataset.path=rows.jsonl", *overrides)
    messages = [warning for warning in plan.warnings if warning.startswith("task.name: ")]
    assert messages == [f"task.name: {message}: training rows come from rows.jsonl (train_dataset.path)"]


def test_the_ratio_of_a_loss_of_the_user_s_is_the_loss_s_own(tmp_path):
    (tmp_path / "mine.py").write_text("def loss(logprobs, advantages):\n    return -logprobs * advantages\n")
    plan = plan_of("grpo", f"actor.loss={tmp_path / 'mine.py'}:loss", "actor.ratio.mask_high=8")
    assert [warning for warning in plan.warnings if warning.startswith("actor.ratio.mask_high: has no effect")]


def test_loss_scaling_is_for_float16_wherever_that_is_said():
    for message in ("actor.dtype=float16", "actor.grad_reduce_dtype=float16"):
        messages = plan_of("grpo", message, "actor.optimizer.initial_loss_scale=8")
        assert messages.cannot_start == () and not [each for each in messages.warnings if "loss_scale" in each]


def test_the_first_layers_of_a_model_are_for_training_without_servers():
    assert refused("sft", "model.debug.num_layers=1") == {}
    assert "model.debug.num_layers" in refused("grpo", "actor.debug.num_layers=1")["actor.debug.num_layers"]
    assert refused("grpo", "ref.debug.num_layers=1", "actor.kl_ctl=0.1") == {}


def test_what_has_no_effect_is_told_at_a_start_too(monkeypatch, capsys):
    from launcher.commands import run
    from launcher.supervisor import guardian

    words = ("train_dataset.num_workers=4", "trial_name=auto")
    messages = loaded("grpo", *words)
    monkeypatch.setattr(run, "build_plan", lambda *_, **__: plan_of("grpo", *words))
    monkeypatch.setattr(guardian, "run_guarded", lambda *_: 0)
    assert run.start(messages) == 0
    assert capsys.readouterr().err.startswith("warning: train_dataset.num_workers: has no effect")
