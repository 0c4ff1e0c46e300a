"""Reinforcement learning of an adapter: servers keep the model, and only the adapter is sent."""

from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, Ended, run, running, wait_until_gone

pytestmark = pytest.mark.xdist_group("ring-2")

STEPS = 10
LORA = (
    "actor.use_lora=true",
    "actor.weight_update_mode=adapter",
    "actor.lora_rank=8",
    "actor.lora_alpha=16",
    "actor.lr=2e-3",
    f"total_train_steps={STEPS}",
    "evaluator.freq_steps=10",
)
SYNCHRONOUS = ("max_head_offpolicyness=0", "evaluator.num_examples=200", "train_dataset.batch_size=32", "n_samples=8")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = run(tmp_path_factory.mktemp("adapter"), *LORA, *SYNCHRONOUS, "recover.freq_steps=5")
    assert ended.code == 0, ended.text
    return ended


def test_the_score_rises_with_adapters_alone(ended: Ended) -> None:
    first, last = ended.summary["curve"][0][1], ended.summary["curve"][-1][1]
    assert last > first + 0.1, ended.summary["curve"]


def test_each_batch_is_generated_by_the_previous_version(ended: Ended) -> None:
    events = ended.ledger()
    versions = {event["group"]: set(event["versions"]) for event in events if event["event"] == "finished"}
    for event in events:
        if event["event"] == "trained":
            assert all(versions[group] == {event["step"]} for group in event["groups"])
    evaluated = [(event["versions"], event["answers"]) for event in events if event["event"] == "evaluated"]
    assert evaluated == [([0, 0], 200), ([STEPS, STEPS], 200)]


def test_trainer_and_server_agree_on_every_version(ended: Ended) -> None:
    apart = ended.metric("offpolicy/logprob_diff_max")
    assert len(apart) == STEPS and max(apart) < 1e-3


def test_a_run_with_adapters_survives_a_killed_server_and_trainer(tmp_path: Path) -> None:
    steps = 16
    with running(tmp_path, *SHORT, *LORA, f"total_train_steps={steps}", "evaluator.freq_steps=null") as ring:
        ring.wait_for_step(1)
        ring.kill("server")
        ring.wait_for_step(4)
        ring.kill("trainer")
        ended = ring.wait()
    assert ended.code == 0, ended.text
    assert ended.summary["attempts"] == 2
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line] == list(range(1, steps + 1))
    events = ended.ledger()
    assert audit(events, 2) == []
    one_version = [set(event["versions"]) for event in events if event["event"] == "finished"]
    assert all(len(versions) == 1 for versions in one_version), "a group ends with the adapter that it began with"
    assert wait_until_gone(ended.directory) == {}
