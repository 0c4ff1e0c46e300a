"""A run with a curriculum counts its pools, and a resumed one continues with them."""

import json
from pathlib import Path

import pytest

from areal_like.rollout.rollout_files import rollout_files
from tests.ring.start import SHORT, run, running

pytestmark = pytest.mark.xdist_group("ring-1")

POOLS = ("curriculum.type=difficulty_pool", "curriculum.easy_border=0.5", "valid_dataset=null", "async_training=false")
NAMES = ("normal", "easy", "hard")


RIGHT_SUM = """
from areal_like.data.tasks.addition import addition_reward

def right_sum(prompt, completion, answer):
    return addition_reward(prompt, completion, answer)
"""


def test_pools_of_a_run_continue_when_it_is_resumed_with_the_code_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.py").write_text(RIGHT_SUM)
    (tmp_path / "exp" / "mine.yaml").write_text("defaults: [grpo, _self_]\nreward: {name: 'mine.py:right_sum'}\n")
    ended = run(tmp_path, *SHORT, *POOLS, "total_train_steps=2", config="exp/mine.yaml")
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


LOWEST = """
class Lowest:
    def __init__(self):
        self.means = {}

    def draw(self, rows, count, random):
        return sorted(random.permutation(rows).tolist(), key=lambda row: self.means.get(row, 0.3))[:count]

    def observe(self, group):
        self.means[group.row] = group.mean_reward

    def state(self):
        return list(self.means.items())

    def resume(self, state):
        self.means = dict(state)
"""
SYNCHRONOUS = (
    *("curriculum.sampler.name=mine.py:Lowest", "valid_dataset=null", "async_training=false"),
    *("total_train_steps=8", "rollout.dump_to_file=true"),
)


@pytest.mark.slow
def test_a_sampler_continues_exactly_after_a_kill(tmp_path: Path) -> None:
    """What each step was made of is the same as in a run whose controller was not killed."""
    (tmp_path / "mine.py").write_text(LOWEST)
    whole = run(tmp_path, *SHORT, *SYNCHRONOUS, trial="whole")
    with running(tmp_path, *SHORT, *SYNCHRONOUS) as killed:
        killed.wait_for_step(4)
        killed.kill("rollout")
        ended = killed.wait()
    assert whole.code == ended.code == 0, ended.text
    assert ended.summary["attempts"] == 2
    files = rollout_files(whole.directory / "rollouts")
    assert list(files) == list(range(1, 9))
    assert [rows_and_tokens(file) for file in files.values()] == [
        rows_and_tokens(file) for file in rollout_files(ended.directory / "rollouts").values()
    ]


def rows_and_tokens(file: Path) -> list[tuple[int, list[int]]]:
    return [(line["row"], line["token_ids"]) for line in map(json.loads, file.read_text().splitlines())]
