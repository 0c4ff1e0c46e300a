"""Synchronous runs give the same bits, also across a kill."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, Ended, run, running, warnings_in

pytestmark = pytest.mark.xdist_group("ring-1")

WORDS = (*SHORT, "max_head_offpolicyness=0", "total_train_steps=6", "evaluator.freq_steps=3", "seed=3")
SAME = ("train/loss", "train/grad_norm", "reward/mean", "eval/score", "offpolicy/logprob_diff_max")


def bits(ended: Ended) -> str:
    return hashlib.sha256((ended.model() / "model.safetensors").read_bytes()).hexdigest()


def numbers(ended: Ended) -> dict[str, list[float]]:
    return {name: ended.metric(name) for name in SAME}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = run(tmp_path_factory.mktemp("once"), *WORDS)
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.said
    return ended


def test_the_same_run_twice_has_the_same_rewards_losses_and_weights(once, tmp_path):
    again = run(tmp_path, *WORDS)
    assert again.code == 0, again.said
    assert numbers(again) == numbers(once)
    assert bits(again) == bits(once)


def test_every_sample_is_of_the_version_that_it_trains(once):
    assert set(once.metric("offpolicy/staleness_max")) == {0}
    assert audit(once.ledger(), 0) == []


def test_killed_twice_and_gone_on_with_it_ends_with_the_same_bits(once, tmp_path):
    """A trainer that dies costs an attempt; when all of it dies, the same command goes on where it stood."""
    with running(tmp_path, *WORDS) as killed:
        killed.wait_for_step(1)
        killed.kill("trainer")
        killed.wait_for_step(4, attempt=2)
        os.kill(killed.launcher(), signal.SIGKILL)
        killed.process.wait(120)
    resumed = run(tmp_path, *WORDS)
    assert resumed.code == 0, resumed.said
    assert resumed.summary["attempts"] == 3
    assert numbers(resumed) == numbers(once)
    assert bits(resumed) == bits(once)
    assert audit(resumed.ledger(), 0) == []


def test_resuming_by_hand_from_an_earlier_checkpoint_gives_the_same_end(once, tmp_path):
    root = Path(once.directory).parents[2]
    weights = bits(once)
    again = run(root, f"resume={once.directory}", "resume_step=3", config=None)
    assert again.code == 0, again.said
    assert bits(again) == weights
