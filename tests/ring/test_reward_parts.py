"""A run whose reward is a weighted sum logs each part without its weight."""

from pathlib import Path

import pytest

from tests.ring.start import SHORT, run

pytestmark = pytest.mark.xdist_group("ring-1")


@pytest.mark.shows("reward.parts")
def test_a_run_learns_from_a_weighted_sum_and_logs_its_parts(tmp_path: Path) -> None:
    parts = "reward.parts=[{name: addition}, {name: length, weight: 0.5, args: {limit: 10}}, {name: random, weight: 0}]"
    ended = run(tmp_path, *SHORT, "reward.name=null", parts, "total_train_steps=2", "evaluator.freq_steps=2")
    assert ended.code == 0, ended.text
    columns = (ended.metric(f"reward/{name}") for name in ("mean", "part/addition", "part/length", "part/random"))
    steps = list(zip(*columns, strict=True))
    assert len(steps) == 2
    for mean, sums, length, coin in steps:
        assert mean == pytest.approx(sums + 0.5 * length) and -1 < length < 0 < coin < 1
    assert len(ended.metric("reward/part/addition/digits")) == 2
    assert ended.metric("eval/score") == ended.metric("eval/part/addition/score")
