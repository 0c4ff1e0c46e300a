"""Stopping a run: with a checkpoint, at once, and by its scheduler."""

import os
import signal

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, left_behind, run, running

pytestmark = pytest.mark.xdist_group("ring-2")

WORDS = (*SHORT, "total_train_steps=1000", "evaluator.freq_steps=null")


def checkpoint_of(ring, step):
    return ring.directory / "checkpoints" / f"step_{step:06d}" / ".complete"


def test_every_way_to_stop_leaves_a_checkpoint_that_the_same_command_resumes(tmp_path):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(1)
        os.kill(ring.process.pid, signal.SIGTERM)
        ended = ring.wait(120)
    assert ended.code == 75, f"what a scheduler takes for `start me again`\n{ended.text}"
    first = max(ring.steps())
    assert checkpoint_of(ring, first).exists()

    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(first + 1, attempt=2)
        os.killpg(ring.process.pid, signal.SIGINT)
        ended = ring.wait(120)
    assert ended.code == 130, f"Ctrl-C once\n{ended.text}"
    assert "Traceback" not in ended.out
    second = max(ring.steps())
    assert checkpoint_of(ring, second).exists()
    assert left_behind(ended.directory, set()) == []

    done = run(tmp_path, *WORDS, f"total_train_steps={second + 2}")
    assert done.code == 0, done.text
    steps = [line["step"] for line in done.lines("metrics.jsonl") if "train/loss" in line]
    assert steps == list(range(1, second + 3))
    assert done.summary["attempts"] == 3
    assert audit(done.ledger(), 2) == []


def test_ctrl_c_twice_ends_at_once(tmp_path):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(1)
        os.killpg(ring.process.pid, signal.SIGINT)
        os.killpg(ring.process.pid, signal.SIGINT)
        ended = ring.wait(120)
    assert ended.code == 130, ended.text
    assert left_behind(ended.directory, set()) == []
