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


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 75, id="a scheduler", marks=pytest.mark.slow),  # 75 means `start me again`
        pytest.param(signal.SIGUSR1, 75, id="Slurm's warning", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_leaves_a_checkpoint_that_the_same_command_resumes(tmp_path, number, code):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(1)
        if number == signal.SIGINT:
            os.killpg(ring.process.pid, number)
        else:
            os.kill(ring.process.pid, number)
        ended = ring.wait(120)
    assert ended.code == code and "Traceback" not in ended.out, ended.text
    last = max(ring.steps())
    assert checkpoint_of(ring, last).exists()
    assert left_behind(ended.directory, set()) == []

    done = run(tmp_path, *WORDS, f"total_train_steps={last + 2}")
    assert done.code == 0, done.text
    steps = [line["step"] for line in done.lines("metrics.jsonl") if "train/loss" in line]
    assert steps == list(range(1, last + 3))
    assert done.summary["attempts"] == 2
    assert audit(done.ledger(), 2) == []


@pytest.mark.slow
def test_ctrl_c_twice_ends_at_once(tmp_path):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(1)
        os.killpg(ring.process.pid, signal.SIGINT)
        os.killpg(ring.process.pid, signal.SIGINT)
        ended = ring.wait(120)
    assert ended.code == 130, ended.text
    assert left_behind(ended.directory, set()) == []
