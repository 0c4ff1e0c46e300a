"""A run with a curriculum counts its pools, and a resumed one continues with them."""

from pathlib import Path

import pytest

from tests.ring.start import SHORT, run

pytestmark = pytest.mark.xdist_group("ring-1")

POOLS = ("curriculum.type=difficulty_pool", "curriculum.easy_border=0.5", "valid_dataset=null", "async_training=false")
NAMES = ("normal", "easy", "hard")


def test_pools_of_a_run_continue_when_it_is_resumed(tmp_path: Path) -> None:
    ended = run(tmp_path, *SHORT, *POOLS, "total_train_steps=2")
    assert ended.code == 0, ended.text
    counts = list(zip(*(ended.metric(f"curriculum/{name}") for name in NAMES), strict=True))
    assert len(counts) == 2 and sum(counts[0]) == sum(counts[1])
    assert 0 < sum(counts[0][1:]) <= 16 < sum(counts[1][1:]) <= 32
    resumed = run(tmp_path, f"resume={ended.directory}", "total_train_steps=3", config=None)
    assert resumed.code == 0, resumed.text
    assert sum(ended.metric(f"curriculum/{name}")[-1] for name in NAMES[1:]) > sum(counts[1][1:])


FAILS_LATER = """
class Sampler:
    draws = 0

    def draw(self, rows, count, random):
        self.draws += 1
        return {1: rows[:count]}[self.draws]
"""


def test_an_error_in_a_sampler_ends_the_run_and_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILS_LATER)
    ended = run(tmp_path, *SHORT, "curriculum.sampler.name=mine.py:Sampler", "valid_dataset=null")
    assert ended.code == 1, ended.text
    assert "curriculum.sampler.name: draw of mine.py:Sampler failed: " in ended.text
    assert "mine.py line 7, in draw: KeyError: 2" in ended.text
