"""Two trainer ranks in a run learn like one."""

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import SHORT, run, running, wait_until_gone

pytestmark = pytest.mark.xdist_group("ring-1")

TWO = "actor.backend=fsdp:d2"


@pytest.mark.slow
def test_two_ranks_learn(tmp_path):
    ended = run(tmp_path, TWO, "total_train_steps=60", "evaluator.freq_steps=30", limit_s=900)
    assert ended.code == 0, ended.text
    scores = ended.metric("eval/score")
    assert scores[-1] > scores[0] + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_rank_is_named_by_its_own_end_and_the_run_recovers(tmp_path, index):
    """Not by the error of the other one, whose collective has lost it and which ends at once, too."""
    with running(tmp_path, TWO, *SHORT, "total_train_steps=16", "evaluator.freq_steps=null") as ring:
        ring.wait_for_step(4)
        ring.kill(f"trainer/{index}")
        ended = ring.wait()
    assert ended.code == 0 and ended.summary["attempts"] == 2, ended.text
    (headline,) = [line for line in ended.out.splitlines() if "attempt 2 resumes from step" in line]
    assert headline.startswith(f"trainer/{index} failed (") and "signal 9" in headline
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "train/loss" in line] == list(range(1, 17))
    assert audit(ended.ledger(), 2) == []
    assert wait_until_gone(ended.directory) == {}
