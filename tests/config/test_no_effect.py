"""Keys without effect on training are warnings and do not stop a run."""

import pytest

from tests.support.planning import plan_of


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["train_dataset.num_workers=4"], "train_dataset.num_workers"),
        (["valid_dataset.pin_memory=false"], "valid_dataset.pin_memory"),
        (["valid_dataset.batch_size=7"], "valid_dataset.batch_size"),
        (["valid_dataset.shuffle=false"], "valid_dataset.shuffle"),
        (["valid_dataset.drop_last=true"], "valid_dataset.drop_last"),
        (["rollout.server_type=openai"], "rollout.server_type"),
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
        (["actor.loss=importance_sampling", "actor.eps_clip=0.1"], "actor.eps_clip"),
        (["algorithm=cispo", "actor.eps_clip=0.1"], "actor.eps_clip"),
        (["algorithm=sapo", "actor.eps_clip=0.3"], "actor.eps_clip"),
        (["algorithm=sapo", "actor.ratio.mask_low=2", "actor.ratio.mask_high=1"], "actor.ratio.mask_low"),
        (["algorithm=sapo", "actor.ratio.mask_high=2"], "actor.ratio.mask_high"),
        (["algorithm=dppo", "actor.use_decoupled_loss=true"], "actor.use_decoupled_loss"),
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
        (["actor.kl_ctl=0.1", "ref.optimizer.lr=0.1"], "ref.optimizer"),
        (["actor.kl_ctl=0.1", "ref.reward_clip=5"], "ref.reward_clip"),
        (["actor.kl_ctl=0.1", "ref.advantage.mean_norm=true"], "ref.advantage.mean_norm"),
        (["actor.kl_ctl=0.1", "ref.use_lora=true"], "ref.use_lora"),
        (["actor.kl_ctl=0.1", "ref.overlong_tokens=2"], "ref.overlong_tokens"),
        (["actor.lora_rank=8"], "actor.lora_rank"),
        (["actor.lora_alpha=32"], "actor.lora_alpha"),
        (["actor.target_modules=[q_proj]"], "actor.target_modules"),
        (["actor.lora_dropout=0.1"], "actor.lora_dropout"),
        (["actor.lora_modules_to_save=[lm_head]"], "actor.lora_modules_to_save"),
    ],
)
def test_keys_without_effect_are_warnings_and_do_not_stop_a_start(overrides, key):
    plan = plan_of("grpo", *overrides)
    assert [warning for warning in plan.warnings if warning.startswith(f"{key}: ")]
    assert plan.cannot_start == ()
    assert not [warning for warning in plan_of("grpo").warnings if warning.startswith(f"{key}: ")]


SEVERAL = ("task=null", "train_dataset.max_length=57", "environments.train=[{id: addition},{id: addition,name: b}]")
ONE = (*SEVERAL[:2], "environments.train=[{id: addition}]")
DRAWN, RATES = "curriculum.type=by_environment", "environments.mix.probabilities=[1,3]"
JOINED, SHORTEST = "environments.mix.strategy=concatenate", "environments.mix.stopping_strategy=first_exhausted"
MIX_SEED = "environments.mix.seed=3"


def unread(*overrides: str) -> dict[str, str]:
    """Keys of environments and agents without effect, and why."""
    pairs = [warning.partition(": has no effect: ") for warning in plan_of("grpo", *overrides).warnings]
    return {key: why for key, _, why in pairs if key.startswith(("environments.", "agent."))}


@pytest.mark.parametrize(
    ("overrides", "keys", "why"),
    [
        ([JOINED, MIX_SEED], ["strategy", "seed"], "nothing is mixed with 0 environments (environments.train)"),
        ([*ONE, SHORTEST], ["stopping_strategy"], "nothing is mixed with 1 environment (environments.train)"),
        (
            [*SEVERAL, DRAWN, JOINED, SHORTEST, MIX_SEED],
            ["strategy", "stopping_strategy", "seed"],
            "curriculum.type=by_environment draws the environments",
        ),
        ([*SEVERAL, DRAWN, RATES], [], ""),
        (
            [*SEVERAL, JOINED, SHORTEST, MIX_SEED],
            ["stopping_strategy", "seed"],
            "environments.mix.strategy is concatenate",
        ),
        (
            [*SEVERAL, SHORTEST, MIX_SEED],
            ["seed"],
            "without environments.mix.probabilities or a ratio environments take turns",
        ),
        ([*SEVERAL, SHORTEST, MIX_SEED, RATES], [], ""),
    ],
)
def test_keys_of_a_mix_are_reported_where_nothing_reads_them(overrides, keys, why):
    assert unread(*overrides) == {f"environments.mix.{key}": why for key in keys}


PLAYER = ("environments.processes=2", "environments.max_concurrent=8", "environments.timeout_s=9")
PROGRAM = (
    *("agent.command=[python,solve.py]", "agent.function=solve.py:solve", "agent.reward_from=result"),
    *("agent.timeout_s=9", "agent.max_concurrent=8", "agent.max_memory_gb=2"),
)
CALLS = ("agent.max_calls=3", "agent.failed_reward=0", "agent.turn_discount=0.9", "agent.sampling=request")


def test_keys_of_environments_of_verifiers_and_of_agents_are_reported_where_there_are_none():
    packages = (*ONE[:2], "environments.train=[{id: owner/wordle}]")
    in_benchmark = "evaluator.benchmarks=[{name: w, id: owner/wordle}]"
    keys = {words: {word.partition("=")[0] for word in words} for words in (PLAYER, PROGRAM, CALLS)}
    assert unread(*PLAYER, *PROGRAM, *CALLS).keys() == keys[PLAYER] | keys[PROGRAM] | keys[CALLS]
    for played in (packages, (in_benchmark,)):
        assert unread(*played, *PLAYER, *PROGRAM, *CALLS).keys() == keys[PROGRAM]


def test_keys_of_a_row_loader_are_reported_where_they_have_no_effect():
    for experiment in ("grpo", "sft"):
        words = ("valid_dataset.shuffle=false", "valid_dataset.pin_memory=false", "train_dataset.pin_memory=false")
        keys = {warning.partition(":")[0] for warning in plan_of(experiment, *words).warnings}
        assert "valid_dataset.shuffle" in keys and "train_dataset.pin_memory" not in keys
        assert ("valid_dataset.pin_memory" in keys) == (experiment == "grpo")


def test_adapter_keys_are_no_warning_with_use_lora():
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
def test_a_task_beside_a_data_file_is_a_warning_with_what_it_still_provides(experiment, overrides, message):
    plan = plan_of(experiment, "train_dataset.path=rows.jsonl", *overrides)
    messages = [warning for warning in plan.warnings if warning.startswith("task.name: ")]
    assert messages == [f"task.name: {message}: training rows come from rows.jsonl (train_dataset.path)"]


def test_a_key_of_another_loss_is_reported_with_the_arguments_of_the_selected_one():
    words = "algorithm=sapo", "actor.eps_clip=0.3", "actor.behav_imp_weight_floor=6", "actor.behav_imp_weight_cap=5"
    reason = "has no effect: actor.loss is sapo; its arguments (actor.loss_args) are tau_pos, tau_neg"
    keys = "behav_imp_weight_cap", "behav_imp_weight_floor", "eps_clip"
    assert [warning for warning in plan_of("grpo", *words).warnings] == [f"actor.{key}: {reason}" for key in keys]


def test_ratio_keys_have_no_effect_with_a_user_loss(tmp_path):
    (tmp_path / "mine.py").write_text("def loss(logprobs, advantages):\n    return -logprobs * advantages\n")
    plan = plan_of("grpo", f"actor.loss={tmp_path / 'mine.py'}:loss", "actor.ratio.mask_high=8")
    assert [warning for warning in plan.warnings if warning.startswith("actor.ratio.mask_high: has no effect")]


def test_loss_scaling_has_an_effect_with_either_float16_key():
    for message in ("actor.dtype=float16", "actor.grad_reduce_dtype=float16"):
        messages = plan_of("grpo", message, "actor.optimizer.initial_loss_scale=8")
        assert messages.cannot_start == () and not [each for each in messages.warnings if "loss_scale" in each]
