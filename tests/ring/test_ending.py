"""How a run is stopped: politely, at once, and by its scheduler."""

import os
import signal

import pytest

from tests.ring.start import SHORT, run, running, wait_until_gone

pytestmark = pytest.mark.xdist_group("ring-ending")

WORDS = (*SHORT, "total_train_steps=1000", "evaluator.freq_steps=null")


def test_ctrl_c_once_ends_with_a_checkpoint_that_the_same_command_goes_on_from(tmp_path):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(2)
        os.killpg(ring.process.pid, signal.SIGINT)
        ended = ring.wait(60)
    assert ended.code == 130, ended.said
    assert "Traceback" not in ended.out
    steps = [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    done = max(steps)
    assert (ended.directory / "checkpoints" / f"step_{done:06d}" / ".complete").exists()
    assert wait_until_gone(ended.directory) == {}
    resumed = run(tmp_path, *WORDS, f"total_train_steps={done + 2}")
    assert resumed.code == 0, resumed.said
    steps = [line["step"] for line in resumed.lines("metrics.jsonl") if "train/loss" in line]
    assert steps == list(range(1, done + 3))


def test_ctrl_c_twice_ends_at_once(tmp_path):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(1)
        os.killpg(ring.process.pid, signal.SIGINT)
        os.killpg(ring.process.pid, signal.SIGINT)
        ended = ring.wait(20)
    assert ended.code == 130, ended.said
    assert wait_until_gone(ended.directory) == {}


def test_a_scheduler_that_ends_the_job_gets_a_checkpoint_and_exit_code_75(tmp_path):
    with running(tmp_path, *WORDS) as ring:
        ring.wait_for_step(1)
        os.kill(ring.process.pid, signal.SIGTERM)
        ended = ring.wait(60)
    assert ended.code == 75, ended.said
    assert list((ended.directory / "checkpoints").glob("step_*/.complete"))
