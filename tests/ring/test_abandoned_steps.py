"""A step that takes longer than the grace time of a stop costs no step before it, though no checkpoint was due."""

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, Ended, Running, left_behind, run, running

pytestmark = pytest.mark.xdist_group("ring-2")

WORDS = (
    *(*SHORT, "max_head_offpolicyness=0", "total_train_steps=4", "evaluator.freq_steps=null", "seed=3"),
    *("recover.freq_steps=100", "saver.freq_steps=null", "recover.grace_s=8"),
)
LOSS = """
import os
import time
from pathlib import Path

HERE = Path(__file__).parent


def loss(logprobs, old_logprobs, advantages, weights):
    time.sleep(3.3 if (HERE / "slowly").exists() else 0)
    while (HERE / "slow").exists() and os.environ["RANK"] == (HERE / "slow").read_text():
        (HERE / "reached").touch()
        time.sleep(0.2)
    return -(advantages * (logprobs - old_logprobs).exp() * weights).sum()
"""


def bits(ended: Ended) -> str:
    return hashlib.sha256((ended.model() / "model.safetensors").read_bytes()).hexdigest()


def ranks(number: int) -> tuple[str, ...]:
    return "actor.loss=slow_loss.py:loss", f"actor.backend=fsdp:d{number}"


def stop_in_slow_step(ring: Running, folder: Path, text: str) -> int:
    """Returns the number of steps that are done."""
    ring.wait_for_step(2)
    (folder / "slow").write_text(text)
    until = time.monotonic() + 60
    while not (folder / "reached").exists() and time.monotonic() < until:
        time.sleep(0.1)
    done = max(ring.steps())
    os.kill(ring.process.pid, signal.SIGTERM)
    return done


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_state_before_an_abandoned_step_is_its_checkpoint(tmp_path: Path, number: int) -> None:
    """Of two ranks one computes, and the other waits for it."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
        (folder / "slow_loss.py").write_text(LOSS)
    once = run(whole, *WORDS, *ranks(number))
    assert once.code == 0, once.text

    (stopped / "slowly").touch()
    with running(stopped, *WORDS, *ranks(number)) as ring:
        done = stop_in_slow_step(ring, stopped, str(number - 1))
        ended = ring.wait(60)
    assert ended.code == 75 and "Traceback" not in ended.text, ended.text
    assert "did not end within" not in ended.text
    checkpoints = ended.directory / "checkpoints"
    assert [each.name for each in checkpoints.glob("step_*")] == [f"step_{done:06d}"], ended.text
    assert (
        f"step {done + 1} takes too long; it is abandoned" in (ended.directory / "logs" / "trainer-0.log").read_text()
    )
    assert left_behind(ended.directory, set()) == []

    (stopped / "slow").unlink()
    (stopped / "slowly").unlink()
    again = run(stopped, *WORDS, *ranks(number))
    assert again.code == 0, again.text
    assert again.summary["attempts"] == 2 and bits(again) == bits(once)
    assert audit(again.ledger(), 0) == []
