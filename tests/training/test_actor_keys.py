"""Effects of the actor's algorithm keys on rewards, advantages and updates."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from areal_like.config.allocation.models import trained_models
from areal_like.config.problems import ConfigError
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.training import main
from areal_like.training.actor import Actor
from areal_like.training.batch import REFERENCE, SAMPLER, VERSIONS, TrainingBatch
from areal_like.training.batch_advantages import shaped_rewards, token_advantages
from areal_like.training.engine import TrainEngine
from areal_like.training.main import load_trained_engine
from areal_like.training.reference import NoReference
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.rollout_world import grpo
from tests.support.training_runs import make_run, model_folder, train_step, world

PLAIN = (
    "actor.reward_norm=null",
    "actor.adv_norm=null",
    "actor.loss_aggregation=token_mean",
    "actor.use_decoupled_loss=false",
    "actor.eps_clip_higher=null",
    "actor.mask_no_eos_with_zero=false",
    "gconfig.n_samples=2",
    "gconfig.max_new_tokens=10",
    "actor.optimizer.warmup_steps=0",
)
"""An algorithm that changes nothing: the advantage of a token is the reward of its answer."""


def actor_of(*overrides: str) -> PPOActorConfig:
    config: PPOActorConfig = grpo(*PLAIN, *overrides).actor
    return config


def batch_of(rewards: list[float], generated: list[int], truncated: int | None = None) -> TrainingBatch:
    """Two answers to each prompt; every prompt has one token."""
    count = len(rewards)
    lengths = np.array(generated) + 1
    draw = np.random.default_rng(3)
    mask = np.concatenate([[0] + [1] * length for length in generated]).astype(np.uint8)
    total = int(lengths.sum())
    fields = {SAMPLER: np.zeros(total, np.float32), VERSIONS: np.zeros(total, np.int32)}
    return TrainingBatch(
        step=0,
        rewards_A=np.array(rewards, np.float32),
        has_reward_A=np.ones(count, bool),
        groups_A=np.arange(count) // 2,
        generated_A=np.array(generated),
        truncated_A=np.arange(count) == (-1 if truncated is None else truncated),
        loss_tokens_A=np.array(generated),
        oldest_version=0,
        mine_N=np.arange(count),
        sequences=Sequences(draw.integers(0, 40, total).astype(np.int32), mask, lengths, fields),
        num_tokens=total,
    )


REWARDS = [1.0, 0.0, 4.0, 2.0]
GENERATED = [2, 10, 8, 4]
SHAPED: dict[str, tuple[tuple[str, ...], list[float]]] = {
    "reward_scaling": (("reward_scaling=0.5",), [0.5, 0, 2, 1]),
    "reward_bias": (("reward_bias=1",), [2, 1, 5, 3]),
    "reward_clip": (("reward_clip=1.5",), [1, 0, 1.5, 1.5]),
    "overlong_reward_penalty": (("overlong_reward_penalty=true",), [1, -1, 4, 2]),
    "overlong_tokens": (("overlong_reward_penalty=true", "overlong_tokens=4"), [1, -1, 3.5, 2]),
    "overlong_penalty_factor": (("overlong_reward_penalty=true", "overlong_penalty_factor=3"), [1, -3, 4, 2]),
    "max_new_tokens": (
        ("overlong_reward_penalty=true", "overlong_tokens=12", "max_new_tokens=20"),
        [1, -1 / 6, 4, 2],
    ),
    "mask_no_eos_with_zero": (("reward_bias=1", "mask_no_eos_with_zero=true"), [2, 0, 5, 3]),
    "zero_truncated_completions": (("reward_bias=1", "zero_truncated_completions=true"), [2, 1, 5, 3]),
}
NORMS: dict[str, tuple[tuple[str, ...], list[float]]] = {
    "mean_level": (("mean_level=group", "std_level=null"), [0.5, -0.5, 1, -1]),
    "mean_leave1out": (("mean_level=group", "mean_leave1out=true", "std_level=null"), [1, -1, 2, -2]),
    "std_level": (("mean_level=group", "std_level=group", "eps=0"), [0.5**0.5, -(0.5**0.5)] * 2),
    "std_unbiased": (("mean_level=group", "std_level=group", "eps=0", "std_unbiased=false"), [1, -1, 1, -1]),
    "eps": (("mean_level=group", "std_level=group", "eps=0.5", "std_unbiased=false"), [0.5, -0.5, 2 / 3, -2 / 3]),
}


def test_without_reward_keys_rewards_are_unchanged():
    assert shaped_rewards(batch_of(REWARDS, GENERATED, truncated=1), actor_of()).tolist() == REWARDS


@pytest.mark.shows("actor.{key}")
@pytest.mark.parametrize("key", SHAPED)
def test_a_key_of_rewards(key):
    settings, expected = SHAPED[key]
    config = actor_of(*(f"actor.{setting}" for setting in settings))
    assert shaped_rewards(batch_of(REWARDS, GENERATED, truncated=1), config).tolist() == pytest.approx(expected)


@pytest.mark.shows("actor.reward_norm.{key}")
@pytest.mark.parametrize("key", NORMS)
def test_a_key_of_reward_norm(key):
    settings, expected = NORMS[key]
    config = actor_of(*(f"actor.reward_norm.{setting}" for setting in settings))
    assert shaped_rewards(batch_of(REWARDS, GENERATED), config).tolist() == pytest.approx(expected)


GROUP_ADVANTAGES: dict[str, tuple[str, list[float]]] = {
    "std_norm": ("local", [0.5**0.5, -(0.5**0.5)] * 2),
    "length_weighted_mean": ("true", [5 / 6, -1 / 6, 2 / 3, -4 / 3]),
    "leave_one_out": ("true", [1, -1, 2, -2]),
    "neg_clipped": ("true", [0.5, 0, 1, 0]),
    "mean_norm": ("true", [1, -1, 1 / 3, -1 / 3]),
}


@pytest.mark.shows("actor.advantage.{key}")
@pytest.mark.parametrize("key", GROUP_ADVANTAGES)
def test_a_key_of_advantages_relative_to_the_group(key):
    value, expected = GROUP_ADVANTAGES[key]
    config = actor_of(f"actor.advantage.{key}={value}")
    assert shaped_rewards(batch_of(REWARDS, GENERATED), config).tolist() == pytest.approx(expected)


def test_global_deviation_is_of_the_whole_batch_unlike_prime_rl():
    config = actor_of("actor.advantage.std_norm=global")
    expected = np.array([0.5, -0.5, 1, -1]) / np.std(REWARDS, ddof=1)
    assert shaped_rewards(batch_of(REWARDS, GENERATED), config).tolist() == pytest.approx(expected.tolist())


def advantages(batch: TrainingBatch, config: PPOActorConfig, gap: float | None = None) -> list[float]:
    """Of the generated tokens; `gap` is how far the reference lies below the policy."""
    old = np.full(len(batch.sequences.token_ids), -1.0, np.float32)
    if gap is not None:
        batch.sequences.fields[REFERENCE] = old - np.float32(gap)
    actual = token_advantages(batch, config, world(), old)
    return [float(value) for value in actual.advantages[batch.sequences.target_mask]]


@pytest.mark.shows("actor.adv_norm.{key}")
@pytest.mark.parametrize("key", NORMS)
def test_a_key_of_adv_norm(key):
    """Answers of one token, so that tokens count as answers do."""
    settings, expected = NORMS[key]
    config = actor_of(*(f"actor.adv_norm.{setting}" for setting in settings))
    assert advantages(batch_of(REWARDS, [1] * 4), config) == pytest.approx(expected)


@pytest.mark.shows("actor.{key}")
@pytest.mark.parametrize("key", ["discount", "gae_lambda"])
def test_later_rewards_count_less_by(key):
    batch = batch_of([1.0, 0.0], [3, 1])
    assert advantages(batch, actor_of()) == [1, 1, 1, 0]
    assert advantages(batch, actor_of(f"actor.{key}=0.5")) == [0.25, 0.5, 1, 0]


@pytest.mark.shows("actor.kl_ctl")
def test_kl_ctl_weighs_the_kl_penalty_and_loads_the_reference():
    actual = advantages(batch_of([0.0, 0.0], [1, 1]), actor_of("actor.kl_ctl=0.2", "actor.kl_estimator=k1"), gap=0.5)
    assert actual == pytest.approx([-0.1, -0.1])
    assert "ref" not in dict(trained_models(grpo("actor.kl_ctl=0")))
    assert "ref" in dict(trained_models(grpo("actor.kl_ctl=0.2")))


@pytest.mark.shows("actor.kl_estimator")
@pytest.mark.parametrize(("estimator", "distance"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 0.5)])
def test_kl_estimator_selects_the_estimate(estimator, distance):
    config = actor_of("actor.kl_ctl=0.2", f"actor.kl_estimator={estimator}")
    assert advantages(batch_of([0.0, 0.0], [1, 1]), config, gap=0.5) == pytest.approx([-0.2 * distance] * 2, rel=1e-5)


# The update


@cache
def folder_of(root: Path) -> Path:
    return model_folder(root, "qwen3")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    actual: Path = tmp_path_factory.mktemp("actor")
    return actual


def update(
    root: Path, *overrides: str, gap: float = 0.0, reward: float = 1.0, sampled_at: float = 0.5
) -> dict[str, float]:
    """One step on answers whose ratio to the policy in training is exp(gap)."""
    run = make_run(root / "run", "grpo", f"actor.path={folder_of(root)}", *PLAIN, "gconfig.temperature=0.5", *overrides)
    actor = Actor(
        load_trained_engine(run, run.config.actor, "actor", world()), NoReference(), run.config.actor, run.config.seed
    )
    batch = batch_of([reward] * 4, [3, 4, 5, 6])
    batch.sequences.fields[SAMPLER] = sampled(actor, batch, sampled_at, gap)
    return train_step(actor, batch)


def sampled(actor: Actor, batch: TrainingBatch, sampled_at: float, gap: float) -> NDArray[np.float32]:
    """Log-probabilities of a sampler that lies below the policy by `gap`."""
    sequences = batch.sequences
    micro = sequences.micro_batch(range(len(sequences)), world().device)
    logprobs = sequences.scatter([micro], actor.engine.logprobs([micro], sampled_at))
    return np.where(sequences.target_mask, logprobs - np.float32(gap), 0).astype(np.float32)


CLIPPED, FREE = "actor.eps_clip=0.2", "actor.eps_clip=0.5"
DECOUPLED = "actor.use_decoupled_loss=true"
LOSS: dict[str, tuple[tuple[str, ...], tuple[str, ...], float, float, float, float]] = {
    # key: settings without it, settings with it, log-ratio, reward, and the gradient of both as a multiple of that
    # on policy
    "eps_clip": ((CLIPPED,), (FREE,), 0.3, 1.0, 0.0, math.exp(0.3)),
    "eps_clip_higher": ((CLIPPED,), (CLIPPED, "actor.eps_clip_higher=0.5"), 0.3, 1.0, 0.0, math.exp(0.3)),
    "c_clip": ((CLIPPED,), (CLIPPED, "actor.c_clip=3"), 2.0, -1.0, math.exp(2.0), 0.0),
    "use_decoupled_loss": ((CLIPPED,), (CLIPPED, DECOUPLED), 0.3, 1.0, 0.0, math.exp(0.3)),
    "behav_imp_weight_cap": (
        (CLIPPED, DECOUPLED),
        (CLIPPED, DECOUPLED, "actor.behav_imp_weight_cap=1.2"),
        *(0.3, 1.0, math.exp(0.3), 0.0),
    ),
    "behav_imp_weight_mode": (
        (CLIPPED, DECOUPLED, "actor.behav_imp_weight_cap=1.2"),
        (CLIPPED, DECOUPLED, "actor.behav_imp_weight_cap=1.2", "actor.behav_imp_weight_mode=truncate"),
        *(0.3, 1.0, 0.0, 1.2),
    ),
    "behav_imp_weight_floor": (
        (CLIPPED, DECOUPLED),
        (CLIPPED, DECOUPLED, "actor.behav_imp_weight_floor=1.5"),
        *(0.3, 1.0, math.exp(0.3), 0.0),
    ),
    "behav_imp_weight_level": (
        (CLIPPED, DECOUPLED, "actor.behav_imp_weight_cap=2"),
        (CLIPPED, DECOUPLED, "actor.behav_imp_weight_cap=2", "actor.behav_imp_weight_level=sequence"),
        *(0.3, 1.0, math.exp(0.3), 0.0),
    ),
    "recompute_logprob": ((CLIPPED,), (CLIPPED, "actor.recompute_logprob=true"), 0.3, 1.0, 0.0, 1.0),
    "loss": ((CLIPPED,), (CLIPPED, "actor.loss=importance_sampling"), 0.3, 1.0, 0.0, math.exp(0.3)),
}
RATIO: dict[str, tuple[tuple[str, ...], tuple[str, ...], float, float, float, float]] = {
    "mask_high": ((FREE,), (FREE, "actor.ratio.mask_high=1.2"), 0.3, 1.0, math.exp(0.3), 0.0),
    "mask_low": ((FREE,), (FREE, "actor.ratio.mask_low=0.9"), -0.3, 1.0, math.exp(-0.3), 0.0),
    "sequence_mask_low": ((FREE,), (FREE, "actor.ratio.sequence_mask_low=0.9"), -0.3, 1.0, math.exp(-0.3), 0.0),
    "level": (
        (FREE, "actor.ratio.mask_high=2"),
        (FREE, "actor.ratio.mask_high=2", "actor.ratio.level=sequence"),
        *(0.3, 1.0, math.exp(0.3), 0.0),
    ),
    "length_norm": (
        (FREE, "actor.ratio.mask_high=2", "actor.ratio.level=sequence"),
        (FREE, "actor.ratio.mask_high=2", "actor.ratio.level=sequence", "actor.ratio.length_norm=true"),
        *(0.3, 1.0, 0.0, math.exp(0.3)),
    ),
}
"""The same of the ratio between policy and sampler."""


@pytest.mark.shows("actor.ratio.{key}")
@pytest.mark.parametrize("key", RATIO)
def test_a_key_of_the_ratio(root, key):
    learns_otherwise(root, *RATIO[key])


@pytest.mark.shows("actor.{key}")
@pytest.mark.parametrize("key", LOSS)
def test_a_key_of_the_loss(root, key):
    learns_otherwise(root, *LOSS[key])


def learns_otherwise(
    root: Path, without: Any, with_it: Any, gap: float, reward: float, usual: float, expected: float
) -> None:
    on_policy = update(root, reward=reward)["train/grad_norm"]
    assert on_policy > 1e-3
    for settings, factor in ((without, usual), (with_it, expected)):
        actual = update(root, *settings, gap=gap, reward=reward)["train/grad_norm"]
        assert actual == pytest.approx(factor * on_policy, rel=1e-3, abs=1e-6), settings


@pytest.mark.shows("actor.ppo_n_minibatches")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ppo_n_minibatches_is_the_number_of_updates(root, count):
    assert update(root, f"actor.ppo_n_minibatches={count}")["train/updates"] == count


def test_temperature_scales_the_logits_of_the_policy(root):
    assert update(root)["offpolicy/logprob_diff_max"] < 1e-5
    assert update(root, "gconfig.temperature=1")["offpolicy/logprob_diff_max"] > 0.1


# Defaults that interpolate other keys


COPIES = {
    "actor.group_size": 3,
    "actor.reward_norm.group_size": 3,
    "actor.adv_norm.group_size": 3,
    "actor.temperature": 0.3,
    "ref.temperature": 0.3,
}
"""Key -> a value that is not what it is a copy of."""


@pytest.mark.shows("{path}")
@pytest.mark.parametrize("path", COPIES)
def test_a_copy_of_a_number_must_agree(path):
    with pytest.raises(ConfigError, match=rf"{path} .*must agree: leave {path} out"):
        grpo(f"{path}={COPIES[path]}")
    assert grpo(f"{path}={0.5 if 'temperature' in path else 8}") is not None


# What means nothing to a model that is only computed with

LEARNING: dict[str, Any] = {
    "group_size": 3,
    "log_agent_stats": "true",
    "log_agent_stats_keys": "[turns]",
    "ppo_n_minibatches": 7,
    "eps_clip": 0.01,
    "eps_clip_higher": 0.02,
    "c_clip": 1.01,
    "reward_scaling": 5,
    "reward_bias": 5,
    "reward_clip": 0.1,
    "overlong_reward_penalty": "true",
    "overlong_tokens": 1,
    "overlong_penalty_factor": 9,
    "mask_no_eos_with_zero": "true",
    "discount": 0.1,
    "gae_lambda": 0.1,
    "kl_ctl": 3,
    "kl_estimator": "k3",
    "recompute_logprob": "true",
    "use_decoupled_loss": "true",
    "behav_imp_weight_cap": 0.1,
    "behav_imp_weight_floor": 0.05,
    "behav_imp_weight_mode": "truncate",
    "behav_imp_weight_level": "sequence",
    "kl_in": "loss",
    "dynamic_sampling": "true",
    "masked_answers_vote": "true",
    "max_new_tokens": 1,
    "gradient_checkpointing": "false",
    "grad_reduce_dtype": "bfloat16",
    "use_lora": "true",
    "lora_rank": 2,
    "lora_alpha": 90,
    "target_modules": "[no_such_layer]",
    "peft_type": "lora",
    "lora_dropout": 0.9,
    "lora_modules_to_save": "[no_such_layer]",
    **{
        f"optimizer.{name}": value
        for name, value in (
            *(("type", "sgd"), ("lr", 9), ("weight_decay", 0.5), ("beta1", 0.1), ("beta2", 0.1), ("eps", 9)),
            *(("gradient_clipping", 0.01), ("offload", "true"), ("min_lr_ratio", 1), ("lr_scheduler_type", "cosine")),
            *(("warmup_steps_proportion", 1), ("initial_loss_scale", 8), ("min_loss_scale", 8)),
            *(("loss_scale_window", 1), ("hysteresis", 9)),
        )
    },
    **{
        f"{norm}.{name}": value
        for norm in ("reward_norm", "adv_norm")
        for name, value in (
            ("mean_level", "batch"),
            ("mean_leave1out", "true"),
            ("std_level", "null"),
            ("std_unbiased", "false"),
            ("eps", 9),
            ("group_size", 3),
        )
    },
}


@cache
def with_reference(root: Path, *words: str) -> dict[str, float]:
    """A step of an actor that is held near to a reference."""
    overrides = ("actor.kl_ctl=0.1", "ref.init_from_scratch=true", f"actor.path={folder_of(root)}")
    run = make_run(root / "reference", "grpo", *overrides, *PLAIN, "gconfig.temperature=0.5", *words)
    engine = load_trained_engine(run, run.config.actor, "actor", world())
    actor = Actor(engine, main._reference(run, engine), run.config.actor, run.config.seed)
    return train_step(actor, batch_of(REWARDS, [3, 4, 5, 6]))


def test_kl_in_puts_the_penalty_in_the_reward_or_the_loss(root):
    assert advantages(batch_of([0.0, 0.0], [1, 1]), actor_of("actor.kl_ctl=0.2", "actor.kl_in=loss"), gap=0.5) == [0, 0]
    overrides = ("actor.kl_estimator=k3", "actor.ppo_n_minibatches=1", "actor.loss_aggregation=token_mean")
    nothing = ("actor.reward_scaling=0", "actor.kl_in=loss")
    apart = with_reference(root, *overrides, *nothing)
    assert apart["train/kl_ref"] > 0.01 and apart["train/grad_norm"] > 1e-3
    assert apart["train/loss"] == pytest.approx(0.1 * apart["train/kl_ref"], rel=1e-5)
    together = with_reference(root, *overrides, *nothing, "ref.init_from_scratch=false")
    assert together["train/kl_ref"] < 1e-6 and together["train/grad_norm"] < 1e-4


def test_the_reference_uses_the_sampling_temperature_unlike_areal(root):
    for temperature in (0.5, 2):
        overrides = ("ref.init_from_scratch=false", f"gconfig.temperature={temperature}")
        assert with_reference(root, *overrides)["train/kl_ref"] < 1e-6


def test_the_reference_model_uses_the_micro_batches_of_its_section(root, monkeypatch):
    calls, logprobs = [], TrainEngine.logprobs

    def noted(self: TrainEngine, micros: Sequence[MicroBatch], temperature: float) -> list[Tensor]:
        calls.append((self.section, len(micros)))
        return logprobs(self, micros, temperature)

    monkeypatch.setattr(TrainEngine, "logprobs", noted)
    with_reference(root, "ref.mb_spec.n_mbs=3", "actor.mb_spec.n_mbs=2")
    assert ("ref", 3) in calls


@pytest.fixture(scope="module")
def steps(root) -> dict[str, dict[str, float]]:
    """Beside references of three kinds."""
    keys = [f"ref.{key}={value}" for key, value in LEARNING.items()]
    kinds = {"usual": [], "all keys": keys, "other weights": ["ref.init_from_scratch=false"]}
    return {kind: with_reference(root, *words) for kind, words in kinds.items()}


@pytest.mark.shows_no_effect("ref.{name}")
@pytest.mark.parametrize("name", LEARNING)
def test_training_keys_have_no_effect_on_the_reference_model(steps, name):
    """All are set at once: a step gives the same bits."""
    assert steps["all keys"] == steps["usual"]
    assert steps["other weights"] != steps["usual"], "what the reference says counts"
