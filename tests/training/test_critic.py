"""The critic: values before the policy's update, training on the returns after it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_like.config.problems import ConfigError
from areal_like.observe.metrics import find_metric
from areal_like.observe.timing import Stopwatch
from areal_like.process.errors import Failure
from areal_like.process.run import Run
from areal_like.training.actor import Actor
from areal_like.training.batch import ADVANTAGES, RETURNS, VALUES, TrainingBatch
from areal_like.training.batch_advantages import token_advantages
from areal_like.training.controller_client import TrainerControllerClient
from areal_like.training.critic import Critic
from areal_like.training.loop import train
from areal_like.training.main import load_trained_engine
from areal_like.training.reference import NoReference
from areal_like.training.stop import StopRequest
from tests.support.planning import loaded, of_role, plan_of
from tests.support.training_controller import FakeController
from tests.support.training_runs import ME, MODELS, make_run, metrics_of, start_from, train_step, weights_of, world
from tests.training.test_actor_keys import batch_of
from tests.training.test_loop import SECRET, SETTINGS, sampled

OURS = ("rollout.backend=embedded", "gconfig.n_samples=2", "critic.optimizer.warmup_steps=0")
GENERATED = [2, 5, 4, 3]
REWARDS = [1.0, 0.0, 1.0, 0.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that has a head for tokens and one for values."""
    actual: Path = tmp_path_factory.mktemp("critic") / "model"
    torch.manual_seed(3)
    causal: Any = AutoModelForCausalLM.from_config(MODELS["qwen3"])
    causal.save_pretrained(actual)
    return actual


@pytest.fixture(scope="module")
def critic_folder(folder: Path) -> Path:
    """The same with a random value head."""
    actual = folder.with_name("judge")
    torch.manual_seed(4)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    torch.nn.init.normal_(model.score.weight, std=0.3)
    model.save_pretrained(actual)
    return actual


def ppo_run(directory: Path, folder: Path, *overrides: str) -> Run:
    return make_run(directory, "ppo", f"actor.path={folder}", *OURS, *overrides)


def critic_of(run: Run) -> Critic:
    critic = Critic(load_trained_engine(run, run.config.critic, "critic", world(), "critic"), run.config.critic, seed=1)
    if critic.learns:
        critic.engine.set_schedule(100)
    return critic


def actor_of(run: Run) -> Actor:
    return Actor(load_trained_engine(run, run.config.actor, "actor", world()), NoReference(), run.config.actor, seed=1)


def judged(critic: Critic) -> TrainingBatch:
    batch = batch_of(REWARDS, GENERATED)
    critic.compute_values(batch, Stopwatch())
    return batch


def with_returns(batch: TrainingBatch, returns: float) -> TrainingBatch:
    """A batch whose returns are so far above the values."""
    fields = batch.sequences.fields
    fields[RETURNS] = np.where(batch.sequences.target_mask, fields[VALUES] + np.float32(returns), 0).astype(np.float32)
    return batch


def test_the_value_of_a_token_is_of_the_state_before_it(tmp_path, folder, critic_folder):
    batch = judged(critic_of(ppo_run(tmp_path, folder, f"critic.path={critic_folder}")))
    model: Any = AutoModelForSequenceClassification.from_pretrained(critic_folder).eval()
    sequences = batch.sequences
    for start, length in zip(sequences.starts_N, sequences.lengths_N, strict=True):
        ids = torch.from_numpy(sequences.token_ids[start : start + length].astype(np.int64))[None]
        with torch.no_grad():
            expected = model.score(model.base_model(ids).last_hidden_state)[0, :-1, 0]
        actual = torch.from_numpy(sequences.fields[VALUES][start + 1 : start + length])
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert not sequences.fields[VALUES][~sequences.target_mask].any()


def test_a_new_critic_predicts_0_so_that_advantages_are_as_without_one(tmp_path, folder):
    run = ppo_run(tmp_path, folder)
    batch, plain = judged(critic_of(run)), batch_of(REWARDS, GENERATED)
    actual, expected = train_step(actor_of(run), batch), train_step(actor_of(run), plain)
    assert actual == expected
    assert np.array_equal(batch.sequences.fields[ADVANTAGES], plain.sequences.fields[ADVANTAGES])


def test_advantages_are_measured_against_its_values_and_returns_are_not_normalized(tmp_path, folder):
    values = np.array([0.0, 0.3, 0.4, 0.5, 0.6], np.float32)
    for norm in ("null", "batch"):
        words = [f"actor.adv_norm.{name}_level={norm}" for name in ("mean", "std")]
        config = ppo_run(tmp_path, folder, "actor.discount=0.9", "actor.gae_lambda=0.8", *words).config.actor
        batch = batch_of([1.0], [4])
        batch.sequences.fields[VALUES] = values
        actual = token_advantages(batch, config, world(), np.zeros(5, np.float32))
        expected = _gae([0, 0, 0, 1.0], values[1:].tolist(), 0.9, 0.8)
        assert actual.returns[1:] == pytest.approx(np.array(expected) + values[1:], abs=1e-6)
        if norm == "null":
            assert actual.advantages[1:] == pytest.approx(expected, abs=1e-6)
        else:
            assert actual.advantages[1:].mean() == pytest.approx(0, abs=1e-6)


def _gae(rewards: list[float], values: list[float], discount: float, gae_lambda: float) -> list[float]:
    advantages, after = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(values) else 0.0
        after = rewards[t] + discount * following - values[t] + discount * gae_lambda * after
        advantages[t] = after
    return advantages


def test_the_critic_learns_the_expected_return(tmp_path, folder):
    """The same answers in every step."""
    run = ppo_run(tmp_path, folder, "critic.optimizer.lr=0.02", "critic.ppo_n_minibatches=1")
    critic, config, metrics = critic_of(run), run.config.actor, []
    for step in range(40):
        batch = judged(critic)
        batch.step = step
        sequences = batch.sequences
        nothing = np.zeros(len(sequences.token_ids), np.float32)
        sequences.fields[RETURNS] = token_advantages(batch, config, world(), nothing).returns
        metrics.append(critic.update(batch, Stopwatch()))
    first, last = metrics[0], metrics[-1]
    assert first["critic/explained_variance"] == pytest.approx(0, abs=1e-6) and first["critic/value_mean"] == 0
    assert last["critic/explained_variance"] > 0.95 and last["critic/loss"] < 0.02 * first["critic/loss"]
    assert last["critic/value_mean"] == pytest.approx(last["critic/return_mean"], abs=0.05)
    assert all(find_metric(name) for name in first)


def test_the_critic_loss_is_half_the_mean_squared_error_for_any_split(tmp_path, folder, critic_folder):
    actual = []
    for cut in ("critic.mb_spec.n_mbs=1", "critic.mb_spec.n_mbs=3", "critic.mb_spec.max_tokens_per_mb=6"):
        critic = critic_of(ppo_run(tmp_path, folder, f"critic.path={critic_folder}", "critic.ppo_n_minibatches=1", cut))
        actual.append(critic.update(with_returns(judged(critic), 0.3), Stopwatch()))
    assert actual[0]["critic/loss"] == pytest.approx(0.3**2 / 2, rel=1e-4)
    for other in actual[1:]:
        assert other == pytest.approx(actual[0], rel=1e-4, abs=1e-6)


def test_equal_returns_have_no_explained_variance(tmp_path, folder):
    critic = critic_of(ppo_run(tmp_path, folder))
    assert "critic/explained_variance" not in critic.update(with_returns(judged(critic), 0.0), Stopwatch())


@pytest.mark.shows("actor.mask_truncated_completions")
def test_truncated_answers_are_masked_for_the_critic_too(tmp_path, folder):
    run = ppo_run(tmp_path, folder, "actor.mask_truncated_completions=true", "critic.ppo_n_minibatches=1")
    critic, actor = critic_of(run), actor_of(run)
    batch = batch_of(REWARDS, GENERATED, truncated=1)
    critic.compute_values(batch, Stopwatch())
    actual = train_step(actor, batch) | critic.update(batch, Stopwatch())
    assert actual["train/loss_tokens"] == sum(GENERATED) - GENERATED[1]
    kept = [length for row, length in enumerate(GENERATED) if row != 1]
    rewards = [reward for row, reward in enumerate(REWARDS) if row != 1]
    assert actual["critic/return_mean"] == pytest.approx(np.average(rewards, weights=kept))


# Keys


@pytest.mark.shows("critic.ppo_n_minibatches")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_critic_ppo_n_minibatches_is_the_number_of_its_updates(tmp_path, folder, count):
    critic = critic_of(ppo_run(tmp_path, folder, f"critic.ppo_n_minibatches={count}"))
    assert critic.update(with_returns(judged(critic), 1.0), Stopwatch())["critic/updates"] == count


@pytest.mark.shows("critic.eps_clip")
def test_eps_clip_is_how_far_a_step_may_move_a_value(tmp_path, folder):
    """Steps in one direction, all on one batch: past the clip there is no gradient any more, and nothing moves."""
    moved = {}
    for eps_clip in (0.1, 0.5):
        plain = ("critic.optimizer.type=sgd", "critic.optimizer.momentum=0", "critic.optimizer.lr=0.1")
        words = (f"critic.eps_clip={eps_clip}", *plain, "critic.ppo_n_minibatches=1")
        critic = critic_of(ppo_run(tmp_path, folder, *words))
        batch = with_returns(judged(critic), 5.0)
        for step in range(20):
            batch.step = step
            metrics = critic.update(batch, Stopwatch())
        target_mask = batch.sequences.target_mask
        after = judged(critic).sequences.fields[VALUES][target_mask]
        moved[eps_clip] = float((after - batch.sequences.fields[VALUES][target_mask]).mean())
        assert metrics["critic/clip_fraction"] == 1 and metrics["critic/grad_norm"] == 0
    assert 0.1 < moved[0.1] < 0.5 < moved[0.5] < 1


def test_a_plan_shows_the_number_of_critic_steps():
    assert (
        "the critic makes 3 optimizer steps (critic.ppo_n_minibatches)"
        in plan_of("ppo", "critic.ppo_n_minibatches=3").batch.words
    )
    frozen = plan_of("ppo", "critic.optimizer=null")
    assert frozen.cannot_start == () and not any("critic" in word for word in frozen.batch.words)


@pytest.mark.shows("critic.mask_no_eos_with_zero")
def test_mask_no_eos_with_zero_must_equal_the_actors():
    with pytest.raises(ConfigError, match=r"critic\.mask_no_eos_with_zero .*must agree"):
        loaded("ppo", "critic.mask_no_eos_with_zero=true")
    loaded_ppo = loaded("ppo", "actor.mask_no_eos_with_zero=true").config
    assert loaded_ppo.critic.mask_no_eos_with_zero


@pytest.mark.shows_no_effect("{section}.weight_update_mode")
@pytest.mark.parametrize(("section", "experiment"), [("ref", "grpo"), ("critic", "ppo"), ("model", "sft")])
def test_weight_update_mode_has_no_effect_on_models_that_publish_nothing(section, experiment):
    words = ("actor.kl_ctl=0.1",) if section == "ref" else ()
    usual = plan_of(experiment, *words)
    other = plan_of(experiment, *words, f"{section}.weight_update_mode=collective")
    started, expected = ([process for process in plan.processes if process.env] for plan in (other, usual))
    assert other.cannot_start == () and other.ports == usual.ports and started == expected


@pytest.mark.shows("critic.backend")
def test_the_critics_backend_must_be_the_actors():
    with pytest.raises(ConfigError, match=r"^critic\.backend .*takes 3 devices, but critic runs in the processes of"):
        plan_of("ppo", "critic.backend=fsdp:d3")
    plan = plan_of("ppo", "actor.backend=fsdp:d3")
    assert plan.allocation["critic"]["world_size"] == len(of_role(plan, "trainer")) == 3


@pytest.mark.parametrize(
    ("experiment", "word"),
    [("ppo", "critic.is_critic=false"), ("grpo", "actor.is_critic=true"), ("grpo", "ref.is_critic=true")],
)
def test_is_critic_is_refused_for_models_without_a_value_head(experiment, word):
    key = word.partition("=")[0].replace(".", r"\.")
    with pytest.raises(ConfigError, match=rf"{key} .*leave it out"):
        loaded(experiment, word)


# In the ring


def serve(run: Run, total_steps: int, stop_at: int | None = None) -> FakeController:
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    return FakeController(run, SECRET, lambda controller, step: sampled(controller, step, model), total_steps, stop_at)


def train_in(run: Run) -> int:
    critic, actor = critic_of(run), actor_of(run)
    rollouts = TrainerControllerClient(run, ME, 0, 1)
    try:
        return train(run, ME, world(), actor, rollouts, StopRequest(world()), critic)
    finally:
        rollouts.close()


@pytest.fixture
def ring_run(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AREAL_LIKE_TOKEN", SECRET)

    def make(name: str, *overrides: str) -> Run:
        words = (*SETTINGS, "critic.optimizer.lr=0.01", "critic.ppo_n_minibatches=2", *overrides)
        return make_run(tmp_path / name, "ppo", *words, f"actor.path={folder}")

    return make


def test_policy_and_critic_resume_bit_for_bit(ring_run):
    run, again = ring_run("run"), ring_run("again")
    with serve(run, total_steps=6):
        assert train_in(run) == 0
    with serve(again, total_steps=6, stop_at=3):
        assert train_in(again) == 75
    start_from(again, again.checkpoints / "step_000003", 3, attempt=2)
    with serve(again, total_steps=6):
        assert train_in(again) == 0

    for part in ("model.safetensors", "critic/model.safetensors"):
        one, other = (load_file(each.checkpoints / "step_000006" / part) for each in (run, again))
        assert one.keys() == other.keys() and all(torch.equal(other[name], tensor) for name, tensor in one.items())
    names = ("train/loss", "critic/loss", "critic/value_mean")
    losses = [[[line[name] for name in names] for line in metrics_of(each)] for each in (run, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 6

    checkpoint = run.checkpoints / "step_000006"
    critic = load_trained_engine(start_from(run, checkpoint, 6), run.config.critic, "critic", world(), "critic")
    model: Any = AutoModelForSequenceClassification.from_pretrained(checkpoint / "critic")
    assert torch.equal(model.score.weight, weights_of(critic)["score.weight"]) and model.score.weight.any()


def test_the_new_policy_is_served_while_the_critic_learns(ring_run, monkeypatch):
    run, seen = ring_run("run"), []
    learn = Critic.update

    def update(self: Critic, batch: TrainingBatch, watch: Stopwatch) -> dict[str, float]:
        seen.append((len(controller.requests_to("/publish")), len(controller.requests_to("/done"))))
        return learn(self, batch, watch)

    monkeypatch.setattr(Critic, "update", update)
    with serve(run, total_steps=2) as controller:
        train_in(run)
    assert seen == [(2, 0), (3, 1)]


def test_a_frozen_critic_gives_values_and_is_in_no_checkpoint(ring_run, critic_folder):
    run = ring_run("run", "critic.optimizer=null", f"critic.path={critic_folder}")
    with serve(run, total_steps=2):
        assert train_in(run) == 0
    metrics = metrics_of(run)[-1]
    assert metrics["critic/value_mean"] != 0 and "critic/loss" not in metrics
    assert not (run.checkpoints / "step_000002" / "critic").exists()
    assert not critic_of(start_from(run, run.checkpoints / "step_000002", 2)).learns


def test_a_checkpoint_without_a_critic_is_named(ring_run, tmp_path):
    run = ring_run("run")
    (tmp_path / "step_000001").mkdir()
    start_from(run, tmp_path / "step_000001", 1)
    with pytest.raises(Failure, match="written by a run without a critic"):
        load_trained_engine(run, run.config.critic, "critic", world(), "critic")
