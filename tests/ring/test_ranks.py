"""Two trainer ranks in a run learn like one."""

import pytest

from tests.ring.start import run

pytestmark = pytest.mark.xdist_group("ring-1")

TWO = "actor.backend=fsdp:d2"


@pytest.mark.slow
def test_two_ranks_learn(tmp_path):
    ended = run(tmp_path, TWO, "total_train_steps=60", "evaluator.freq_steps=30", limit_s=900)
    assert ended.code == 0, ended.text
    scores = ended.metric("eval/score")
    assert scores[-1] > scores[0] + 0.15
