"""Keys that are not built yet are refused before the start: all at once, each with its key."""

import pytest

from areal_like.config.checks.config_checks import START_CHECKS, refuse_config
from areal_like.config.checks.key_rules import MODELS
from areal_like.config.checks.registry import run_checks
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.fields import NOT_YET
from areal_like.config.problems import ConfigError, Stage
from areal_like.config.schema import Schema
from launcher.commands.run import refuse as refuse_start
from tests.support.planning import loaded, plan_of


def refused(experiment, *overrides):
    """Key -> why, by the configuration alone, as a trainer that was started by hand sees it."""
    facts = {"config": loaded(experiment, *overrides).config}
    return {problem.key: problem.message for problem in run_checks(START_CHECKS, facts, Stage.CANNOT_START)}


@pytest.mark.parametrize("experiment", ["grpo", "ppo", "sft", "reward_model"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_shipped_experiments_pass(experiment, gpus):
    assert plan_of(experiment, gpus=gpus).cannot_start == ()
    assert refused(experiment) == {}


SETTINGS = [
    "cluster.type=slurm",
    "cluster.name_resolve.type=ray",
    "actor.model_impl=liger_kernel",
    "actor.debug.num_layers=1",
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_key_that_is_not_built_is_refused_with_a_remedy(setting):
    result = refused("grpo", setting, "rollout.backend=embedded")
    (key,) = result
    assert setting.startswith(key)
    assert NOT_YET in result[key]
    assert any(word in result[key] for word in ("; use ", "; set it to ", "; leave it out")), result[key]
    assert (key, result[key]) in [
        (obstacle.key, obstacle.message) for obstacle in plan_of("grpo", setting).cannot_start
    ]


def test_a_key_that_will_not_be_built_is_refused_with_the_keys_that_do_the_same():
    (reason,) = refused("grpo", "scheduler.reward_model_path=some/model").values()
    assert NOT_YET not in reason and all(key in reason for key in ("reward.name=model", "reward.args.path"))


@pytest.mark.parametrize(
    "setting",
    [
        "model.model_impl=custom",
        "evaluator.n_samples=2",
    ],
)
def test_a_key_of_supervised_training_that_is_not_built_is_refused(setting):
    (key,) = refused("sft", setting)
    assert setting.startswith(key)


def test_every_rule_for_values_that_are_not_built_has_a_test():
    tried = [setting.partition("=")[0] for setting in SETTINGS]
    declared = [entry.path for entry, rule in Schema.of(EXPERIMENTS["ppo"]).rules if NOT_YET in rule.reason]
    other_models = tuple(f"{name}." for name in MODELS if name != "actor")
    assert "actor.model_impl" in declared
    assert not [
        path
        for path in declared
        if not path.startswith(other_models)
        and "[]" not in path  # test_benchmarks has those of list items
        and not any(name.startswith(path) for name in tried)
    ]


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
def test_values_that_are_supported_or_neutral_are_accepted(setting):
    assert refused("grpo", setting) == {}


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_a_default_is_never_refused(kind):
    keys = [(path, key) for path, key in Schema.of(EXPERIMENTS[kind]).keys.items() if key.constraints.rules]
    texts = [f"{path}={str(key.default).lower()}" for path, key in keys if isinstance(key.default, bool | int)]
    assert refused(kind, *texts, "curriculum.seed=1" if kind == "grpo" else "seed=1") == {}


def test_a_model_that_is_split_other_than_by_data_is_refused():
    assert "use fsdp:d2" in refused("grpo", "actor.backend=fsdp:d1t2")["actor.backend"]
    assert refused("grpo", "actor.backend=fsdp:d2") == {}
    plan = plan_of("grpo", "allocation_mode=embedded:d1+fsdp:d1t2", gpus=4)
    (reason,) = [obstacle.message for obstacle in plan.cannot_start if obstacle.key == "actor.backend"]
    assert "use fsdp:d2" in reason


def test_the_reference_model_is_checked_and_inherited_keys_reported_once():
    assert refused("grpo", "ref.model_impl=custom") == {}
    assert refused("grpo", "ref.model_impl=custom", "actor.kl_ctl=0.1").keys() == {"ref.model_impl"}
    assert refused("grpo", "actor.model_impl=custom", "actor.kl_ctl=0.1").keys() == {"actor.model_impl"}


def test_other_group_sizes_than_one_prompt_are_refused(tmp_path):
    (tmp_path / "turns.py").write_text("class Turns:\n    async def run(self, episode, row):\n        return None\n")
    own = f"workflow.name={tmp_path / 'turns.py'}:Turns"
    assert refused("grpo", own, "actor.group_size=3").keys() == {"actor.group_size"}
    assert refused("grpo", own, "actor.adv_norm.group_size=3").keys() == {"actor.adv_norm.group_size"}


def test_rewards_are_normalized_over_their_group_only_once():
    assert refused("grpo", "actor.advantage.leave_one_out=true", "actor.reward_norm.mean_level=group").keys() == {
        "actor.advantage"
    }
    assert refused("grpo", "actor.advantage.leave_one_out=true", "actor.reward_norm=null") == {}
    assert refused("grpo", "algorithm=maxrl") == {}
    assert refused("grpo", "algorithm=maxrl", "actor.advantage.std_norm=local").keys() == {"actor.advantage.mean_norm"}


def test_all_unbuilt_keys_are_reported_at_once_by_the_start_and_the_trainer():
    words = ("actor.model_impl=custom", "cluster.name_resolve.type=ray", "actor.debug.num_layers=1")
    messages = loaded("grpo", *words)
    with pytest.raises(ConfigError) as by_trainer:
        refuse_config(messages.config)
    with pytest.raises(ConfigError) as at_start:
        refuse_start(plan_of("grpo", *words).problems)
    for error in (by_trainer.value, at_start.value):
        assert {problem.key for problem in error.problems} == {word.partition("=")[0] for word in words}


def test_the_first_layers_of_a_model_are_for_training_without_servers():
    assert refused("sft", "model.debug.num_layers=1") == {}
    assert "model.debug.num_layers" in refused("grpo", "actor.debug.num_layers=1")["actor.debug.num_layers"]
    assert refused("grpo", "ref.debug.num_layers=1", "actor.kl_ctl=0.1") == {}
