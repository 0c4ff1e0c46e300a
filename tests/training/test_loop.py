"""The trainer in a run: gets batches, publishes weights, notifies the controller, and writes checkpoints."""

import itertools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_like.config.sections.checkpoints import BestConfig
from areal_like.observe.diagnosis import RunDiagnosis
from areal_like.process import frames
from areal_like.process.checkpoint_files import complete_checkpoints
from areal_like.process.run import Run
from areal_like.training.actor import Actor
from areal_like.training.batch import read_batch
from areal_like.training.batch_advantages import mask_truncated
from areal_like.training.controller_client import NoMoreBatches, TrainerControllerClient
from areal_like.training.critic import NoCritic
from areal_like.training.loop import train
from areal_like.training.main import load_trained_engine
from areal_like.training.micro_batches import minibatches
from areal_like.training.reference import NoReference, ReferenceModel
from areal_like.training.stop import StopRequest
from areal_like.weights.probe import check_probe
from tests.support.training_controller import FakeController, Groups, batch_frame, trajectory
from tests.support.training_runs import (
    ME,
    make_engine,
    make_run,
    metrics_of,
    model_folder,
    start_from,
    train_step,
    world,
)

SECRET = "a secret"
SETTINGS = (
    "cluster.name_resolve.type=memory",
    "cluster.n_gpus_per_node=0",
    "gconfig.n_samples=4",
    "train_dataset.batch_size=4",
    "gconfig.max_new_tokens=5",
    "recover.freq_steps=2",
    "actor.optimizer.lr=0.01",
    "actor.optimizer.lr_scheduler_type=constant",
    "actor.optimizer.warmup_steps=0",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Run:
    monkeypatch.setenv("AREAL_LIKE_TOKEN", SECRET)
    folder = model_folder(tmp_path, "qwen3")
    return make_run(tmp_path / "run", "grpo", *SETTINGS, f"actor.path={folder}")


def sampled(controller: FakeController | None, step: int, model: Any, lag: int = 0) -> Groups:
    """Answers drawn at random, with the log-probabilities that the published weights give them. The more small ids an
    answer has, the better it is; in every fourth group all are as good."""
    draw = np.random.default_rng(step)
    version = max(0, step - lag)
    if controller is not None:
        model.load_state_dict(controller.published[version].tensors, strict=False)
    groups = []
    for group in range(4):
        prompt = draw.integers(0, 40, 3).tolist()
        members = []
        for _ in range(4):
            ids = prompt + draw.integers(0, 40, int(draw.integers(2, 6))).tolist()
            reward = 0.5 if group == 3 else float(np.mean([token < 20 for token in ids[3:]]))
            members.append(trajectory(ids, 3, reward, version, _logprobs(model, ids)))
        groups.append(members)
    return groups


def _logprobs(model: Any, ids: list[int], temperature: float = 0.5) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0] / temperature
    actual = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(ids)[1:, None]).squeeze(-1)
    return [0.0, *actual.tolist()]


def train_in(run: Run, stop: StopRequest | None = None) -> int:
    """A trainer of this run in this process."""
    engine = load_trained_engine(run, run.config.actor, "actor", world())
    actor = Actor(engine, NoReference(), run.config.actor, run.config.seed)
    rollouts = TrainerControllerClient(run, ME, 0, 1)
    try:
        return train(run, ME, world(), actor, rollouts, stop or StopRequest(world()), NoCritic())
    finally:
        rollouts.close()


def serve(run: Run, total_steps: int, lag: int = 0, stop_at: int | None = None) -> FakeController:
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    make = lambda controller, step: sampled(controller, step, model, lag)  # noqa: E731
    return FakeController(run, SECRET, make, total_steps, stop_at)


def test_each_batch_is_trained_with_its_weights_and_the_next_ones_are_published(run):
    with serve(run, total_steps=3) as controller:
        assert train_in(run) == 0

    order = [(path, body.get("step", body.get("version"))) for path, body in controller.calls if path != "/batch"]
    assert order == [
        *[("/publish", 0), ("/publish", 1), ("/done", 0), ("/publish", 2), ("/done", 1), ("/state", 2)],
        *[("/publish", 3), ("/done", 2), ("/state", 3), ("/finished", 3)],
    ]
    assert controller.requests_to("/finished") == [{"step": 3, "early": False}]
    versions = [publication.tensors["model.norm.weight"] for publication in controller.published.values()]
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(versions))


def test_the_steps_kept_for_the_best_checkpoint_are_those_whose_evaluation_the_controller_says_is_due(run):
    run.config.saver.best, run.config.recover.freq_steps = BestConfig(metric="eval/score", mode="max"), None
    with serve(run, total_steps=4) as controller:
        controller.evaluates = {0: [""], 1: ["another"], 2: ["another", ""]}
        train_in(run)
    assert [step for step, _ in complete_checkpoints(run.checkpoints)] == [1, 3, 4]


def test_a_published_probe_matches_the_published_weights(run):
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    with serve(run, total_steps=1) as controller:
        train_in(run)

    for publication in controller.published.values():
        model.load_state_dict(publication.tensors, strict=False)
        probe = publication.probe
        assert probe is not None and probe.token_ids == controller.probe_tokens[:62], "its context is 64"
        check_probe(probe, _logprobs(model, probe.token_ids, temperature=1.0)[1:], "float32")


def test_on_policy_samples_show_no_gap_and_old_ones_their_age(run):
    with serve(run, total_steps=3, lag=1):
        train_in(run)

    first, *later = metrics_of(run)
    assert first["offpolicy/logprob_diff_max"] < 1e-4 and first["offpolicy/staleness_max"] == 0
    for line in later:
        assert line["offpolicy/staleness_max"] == line["offpolicy/staleness_mean"] == 1
        assert line["offpolicy/staleness_share/1"] == 1 and line["offpolicy/staleness_share/0"] == 0
        assert line["offpolicy/logprob_diff_mean"] > 1e-3 and line["offpolicy/kl"] > 0
    assert [line["step"] for line in (first, *later)] == [1, 2, 3]
    assert first["train/sequences_without_signal"] == 4 and first["train/samples"] == 16


def test_three_steps_and_three_resumed_are_six_bit_for_bit(run, tmp_path):
    with serve(run, total_steps=6) as controller:
        train_in(run)
    whole = load_file(run.checkpoints / "step_000006" / "model.safetensors")

    again = make_run(tmp_path / "again", "grpo", *SETTINGS, f"actor.path={run.config.actor.path}")
    with serve(again, total_steps=6, stop_at=3) as controller:
        assert train_in(again) == 75
    assert controller.requests_to("/finished") == [{"step": 3, "early": True}]
    start_from(again, again.checkpoints / "step_000003", 3, attempt=2)
    with serve(again, total_steps=6) as controller:
        assert train_in(again) == 0

    assert [body["version"] for body in controller.requests_to("/publish")] == [3, 4, 5, 6]
    parts = load_file(again.checkpoints / "step_000006" / "model.safetensors")
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items()) and len(parts) == len(whole)
    losses = [[line["train/loss"] for line in metrics_of(each)] for each in (run, again)]
    assert losses[0] == losses[1]


def test_the_controllers_state_is_stored_unchanged_in_the_checkpoint(run):
    with serve(run, total_steps=2):
        train_in(run)

    part = (run.checkpoints / "step_000002" / "resume" / "controller.frame").read_bytes()
    assert part == frames.pack({"cursor": 2}, [b"a group"])


def test_a_request_to_stop_ends_after_the_step_with_a_checkpoint(run):
    """As SIGTERM makes one, here while batch 1 is being put together."""
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    stop, before = StopRequest(world()), signal.getsignal(signal.SIGTERM)

    def make(controller: FakeController, step: int) -> Groups:
        if step == 1:
            signal.raise_signal(signal.SIGTERM)
        return sampled(controller, step, model)

    stop.listen()
    try:
        with FakeController(run, SECRET, make, total_steps=50) as controller:
            assert train_in(run, stop) == 75
    finally:
        signal.signal(signal.SIGTERM, before)

    assert (run.checkpoints / "step_000002" / ".complete").is_file()
    assert controller.requests_to("/finished") == [{"step": 2, "early": True}]


def test_the_run_ends_with_the_number_of_steps_of_its_newest_batch(run):
    """The controller corrects it when rows turn out too long."""
    run.config.actor.optimizer.lr_scheduler_type = "linear"
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)

    def make(controller: FakeController, step: int) -> Groups:
        controller.total_steps = 3 if step == 1 else controller.total_steps
        return sampled(controller, step, model)

    with FakeController(run, SECRET, make, total_steps=50) as controller:
        assert train_in(run) == 0

    assert controller.requests_to("/finished") == [{"step": 3, "early": False}]
    assert (run.checkpoints / "step_000003" / ".complete").is_file()
    rates = [line["train/lr"] for line in metrics_of(run)]
    assert rates == pytest.approx([0.01, 0.01 * 2 / 3, 0.01 / 3])


def actor_for(run: Run, **settings: Any) -> Actor:
    for name, value in settings.items():
        setattr(run.config.actor, name, value)
    return Actor(
        load_trained_engine(run, run.config.actor, "actor", world()), NoReference(), run.config.actor, run.config.seed
    )


def batch_of(groups: Groups, step: int = 0) -> Any:
    header, blobs = batch_frame(step, groups)
    return read_batch(header, [memoryview(blob) for blob in blobs])


@pytest.mark.shows("train_dataset.pin_memory")
@pytest.mark.parametrize("value", [False, True])
def test_pin_memory_holds_for_batches_of_the_controller(tmp_path, monkeypatch, value):
    monkeypatch.setenv("AREAL_LIKE_TOKEN", SECRET)
    path = f"actor.path={model_folder(tmp_path, 'qwen3')}"
    run = make_run(tmp_path / "run", "grpo", *SETTINGS, path, f"train_dataset.pin_memory={value}")
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    with FakeController(run, SECRET, lambda _, step: sampled(None, step, model), 1):
        client = TrainerControllerClient(run, ME, 0, 1)
        batch = client.batch(0)
        client.close()
    assert not isinstance(batch, NoMoreBatches)
    assert batch.sequences.pin_memory == value
    mask_truncated(batch)
    assert batch.sequences.pin_memory == value


def test_sequences_without_advantage_change_the_denominator_alone(run):
    """Left out of the work, they count as if they had been computed."""
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    groups = sampled(None, 0, model)
    with_all, without = actor_for(run, loss_aggregation="token_mean"), actor_for(run)
    whole = train_step(with_all, batch_of(groups))
    part = train_step(without, batch_of(groups[:3]))

    ratio = part["train/loss_tokens"] / whole["train/loss_tokens"]
    assert ratio < 1
    assert whole["train/grad_norm"] == pytest.approx(part["train/grad_norm"] * ratio, rel=1e-5)


def test_a_batch_without_advantages_changes_nothing_and_is_measured(run):
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    actor = actor_for(run)
    before = {name: tensor.clone() for name, tensor in actor.engine.export_weights()}
    equal = [*sampled(None, 0, model)[3:]] * 3
    for sample in equal[0]:
        sample.logprobs[3:] -= 0.25

    actual = train_step(actor, batch_of(equal))

    assert actual["train/sequences_without_signal"] == 12 and actual["train/grad_norm"] == 0
    assert actual["offpolicy/logprob_diff_mean"] == pytest.approx(0.25, abs=1e-4)
    assert all(torch.equal(before[name], tensor) for name, tensor in actor.engine.export_weights())


def test_a_nan_reward_gives_a_skipped_and_counted_update(run):
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    actor, batch = actor_for(run), batch_of(sampled(None, 0, model))
    batch.rewards_A = batch.rewards_A * np.float32("nan")

    actual = train_step(actor, batch)

    assert actual["train/skipped_updates"] == actor.engine.consecutive_skips > 0 == actual["train/updates"]


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_every_way_to_the_proximal_policy_agrees_in_the_first_update_on_policy(run, decoupled, recompute):
    """Sampler, proximal and current policy are one there, so that all losses have one gradient."""
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    groups = sampled(None, 0, model)
    plain = actor_for(run, use_decoupled_loss=False, recompute_logprob=False, ppo_n_minibatches=1)
    expected = train_step(plain, batch_of(groups))

    actor = actor_for(run, use_decoupled_loss=decoupled, recompute_logprob=recompute, ppo_n_minibatches=1)
    actual = train_step(actor, batch_of(groups))

    assert actual["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-4)


def test_four_minibatches_are_four_updates_against_the_first_policy(run):
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    actor = actor_for(run, use_decoupled_loss=True, ppo_n_minibatches=4)

    actual = train_step(actor, batch_of(sampled(None, 0, model)))

    assert actual["train/updates"] == 4
    assert actual["offpolicy/logprob_diff_max"] < 1e-4, "measured with the policy before the first update"


@pytest.mark.parametrize("groups", [slice(0, 4), slice(3, 4)], ids=["with-signal", "all-equal"])
def test_minibatch_updates_do_not_count_as_a_sampler_mismatch(run, groups):
    """The loss does not need the policy at the start of the step, which is then not computed."""
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    actor = actor_for(run, use_decoupled_loss=False, recompute_logprob=False, ppo_n_minibatches=4, entropy_coef=0.01)

    metrics = train_step(actor, batch_of(sampled(None, 0, model)[groups]))

    assert metrics["train/updates"] == 4 and metrics["train/grad_norm"] > 0
    assert metrics["offpolicy/logprob_diff_max"] < 1e-4
    assert metrics["offpolicy/weight_max"] == pytest.approx(1, abs=1e-4)
    assert RunDiagnosis(run.config).check(1, metrics) == []


def test_a_sample_is_measured_if_the_first_update_has_no_signal(run):
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    plain: dict[str, Any] = {"use_decoupled_loss": False, "recompute_logprob": False, "reward_norm": None}
    actor = actor_for(run, ppo_n_minibatches=2, **plain)
    batch = batch_of(sampled(None, 0, model))
    first, *_ = minibatches(batch.sequences, run.config.actor, world())
    batch.rewards_A[:] = 1.0
    batch.rewards_A[first] = 0.0

    metrics = train_step(actor, batch)

    assert metrics["train/sequences_without_signal"] == len(first) and metrics["train/grad_norm"] > 0
    assert metrics["offpolicy/logprob_diff_max"] < 1e-4, "nan where nothing was measured, more after an update"


def test_the_distance_to_the_reference_model_lowers_the_reward(run, tmp_path):
    """Where all rewards are equal, it alone is what there is to learn from."""
    model: Any = AutoModelForCausalLM.from_pretrained(run.config.actor.path)
    equal = [*sampled(None, 0, model)[3:]] * 2
    actual = {}
    for name, noise in {"the same": 0.0, "another": 0.05}.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * noise)
        model.save_pretrained(tmp_path / name)
        reference = make_engine(tmp_path / name, optimizer=None)
        run.config.actor.kl_ctl = 0.5
        actor = Actor(
            load_trained_engine(run, run.config.actor, "actor", world()),
            ReferenceModel(reference),
            run.config.actor,
            seed=1,
        )
        actual[name] = train_step(actor, batch_of(equal))["train/grad_norm"]

    assert actual["another"] > 0.01 and actual["the same"] < 1e-4
