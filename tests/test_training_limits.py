"""What the trainer cannot do yet is refused before it begins, all at once, each by its key."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from areal_like.config.advantage import AdvantageConfig
from areal_like.config.compose import load
from areal_like.config.problems import ConfigError
from areal_like.config.train_engine import ActivationOffloadingConfig, CompileConfig, ModelDebugConfig
from areal_like.training.limits import refuse
from tests.training_runs import EXPERIMENTS, section


@cache
def composed(experiment: str) -> Any:
    return load(EXPERIMENTS / f"{experiment}.yaml").config


def config(experiment: str, **settings: Any) -> Any:
    """A shipped experiment with other values at some keys; dots of a key are written as double underscores."""
    told = deepcopy(composed(experiment))
    for path, value in settings.items():
        *above, name = path.split("__")
        place = told
        for step in above:
            place = getattr(place, step)
        assert hasattr(place, name), path
        setattr(place, name, value)
    return told


@pytest.mark.parametrize("experiment", ["grpo", "sft"])
def test_what_we_ship_is_let_through(experiment):
    refuse(config(experiment))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("actor__use_lora", True),
        ("actor__dtype", "float16"),
        ("actor__grad_reduce_dtype", "float16"),
        ("actor__attn_impl", "eager"),
        ("actor__pad_to_maximum", True),
        ("actor__compile", section(CompileConfig)),
        ("actor__activation_offloading", section(ActivationOffloadingConfig)),
        ("actor__debug", section(ModelDebugConfig, num_layers=1)),
        ("actor__model_impl", "liger_kernel"),
        ("actor__moe_use_grouped_mm", False),
        ("actor__fsdp__offload_params", True),
        ("actor__fsdp__dp_replicate", 2),
        ("actor__fsdp__load_using_meta", True),
        ("actor__mb_spec__granularity", 2),
        ("actor__weight_update_mode", "collective"),
        ("actor__optimizer__type", "muon"),
        ("actor__optimizer__type", "adam_bf16"),
        ("actor__optimizer__offload", True),
        ("actor__loss", "my_module:my_loss"),
        ("actor__log_agent_stats", True),
        ("actor__advantage", section(AdvantageConfig, leave_one_out=True)),
        ("actor__reward_norm__group_size", 3),
        ("weights__save_format", "torch"),
        ("weights__save_sharded", True),
        ("profiler__trace_path", "traces"),
        ("bench", True),
        ("enable_token_export", True),
        ("recover__skip_progress", True),
    ],
)
def test_a_key_that_is_not_built_is_refused_by_its_name(path, value):
    with pytest.raises(ConfigError) as refused:
        refuse(config("grpo", **{path: value}))

    (key,) = (problem.key for problem in refused.value.problems)
    assert key.startswith(path.replace("__", "."))


@pytest.mark.parametrize(("path", "value"), [("train_dataset__num_workers", 2), ("recover__skip_dataloader", True)])
def test_so_is_one_of_supervised_training(path, value):
    with pytest.raises(ConfigError, match=path.replace("__", r"\.")):
        refuse(config("sft", **{path: value}))


def test_the_reference_is_held_to_the_same_where_it_is_loaded():
    refuse(config("grpo", ref__use_lora=True))
    with pytest.raises(ConfigError, match=r"ref\.use_lora"):
        refuse(config("grpo", ref__use_lora=True, actor__kl_ctl=0.1))


def test_a_zone_wider_than_the_answers_is_refused():
    with pytest.raises(ConfigError, match=r"^actor\.overlong_tokens: 7 is more than actor\.max_new_tokens=6"):
        refuse(config("grpo", actor__overlong_reward_penalty=True, actor__overlong_tokens=7))


def test_all_of_them_are_said_at_once():
    with pytest.raises(ConfigError) as refused:
        refuse(config("grpo", actor__use_lora=True, bench=True))

    assert [problem.key for problem in refused.value.problems] == ["actor.use_lora", "bench"]


def test_a_critic_and_a_reward_model_are_refused_in_words():
    for experiment, key in (("ppo", "critic"), ("reward_model", "model")):
        with pytest.raises(ConfigError, match=rf"^{key}: .*not built yet"):
            refuse(config(experiment))


def test_a_model_that_is_split_otherwise_than_by_data_is_refused_with_what_to_take():
    with pytest.raises(ConfigError, match=r"actor\.backend.*fsdp:d2"):
        refuse(config("grpo", actor__backend="fsdp:d1t2"))
    refuse(config("grpo", actor__backend="fsdp:d2"))
