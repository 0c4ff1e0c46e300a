"""A reward that takes too much fails with the key of the limit, and nothing that it has started is left."""

import asyncio

import pytest

from areal_like.config.load import load
from areal_like.process.process_tree import descendants_of
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.limits import NO_LIMITS, RewardLimits, reward_limits
from tests.support.hurting_rewards import HURTING
from tests.support.reward_parts import each, open_pool


@pytest.fixture
def hurts(tmp_path):
    (tmp_path / "mine.py").write_text(HURTING)
    return RewardSpec("mine.py:hurts", {}, None, {}, str(tmp_path), str(tmp_path))


def outcomes_of(spec, *completions, limits=NO_LIMITS, timeout_s=60.0):
    async def main():
        async with open_pool(spec, timeout_s, limits=limits) as pool:
            outcomes = [(await each(pool, completion))[0] for completion in completions]
            left = [process.pid for process in descendants_of(pool._seats._starter.keeper.pid)]
            return outcomes, pool.counts, len(left)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("completion", "limits", "reason"),
    [
        ("memories", {"max_memory_gb": 0.25}, "GB of memory (reward.max_memory_gb=0.25)"),
        ("forks 40", {"max_processes": 16}, "processes (reward.max_processes=16)"),
        ("sessions 40", {"max_processes": 16}, "processes (reward.max_processes=16)"),
        ("burns", {"max_cpu_s": 0.3}, "s of CPU time (reward.max_cpu_s=0.3)"),
    ],
)
def test_a_reward_past_a_limit_is_ended_with_all_its_processes(hurts, completion, limits, reason):
    outcomes, counts, left = outcomes_of(hurts, "x", completion, "x", limits=RewardLimits(**limits))
    assert (outcomes[0], outcomes[2]) == (1.0, 1.0)
    assert outcomes[1].endswith(reason), outcomes[1]
    assert (counts.errors, counts.children_lost) == (1, 1)
    assert left <= 2 + 2 * 3, "template and its parent, and two processes of a reward with their keepers"


@pytest.mark.parametrize(
    ("completion", "limits", "reason"),
    [
        ("memory", {"max_memory_gb": 0.25}, "in hurts: MemoryError (reward.max_memory_gb=0.25)"),
        ("writes", {"max_file_gb": 0.01}, "File too large (reward.max_file_gb=0.01)"),
    ],
)
def test_what_the_kernel_refuses_is_an_error_in_the_reward(hurts, completion, limits, reason, tmp_path):
    outcomes, counts, _ = outcomes_of(hurts, completion, "x", limits=RewardLimits(**limits))
    assert outcomes[0].endswith(reason) and outcomes[1] == 1.0
    assert (counts.errors, counts.children_lost) == (1, 0)
    if completion == "writes":
        assert (tmp_path / "huge").stat().st_size == 10_000_000


def test_cpu_time_is_counted_for_each_answer(hurts):
    outcomes, counts, _ = outcomes_of(hurts, *["sleeps 0.01"] * 3, limits=RewardLimits(max_cpu_s=5.0))
    assert (outcomes, counts.errors) == ([1.0] * 3, 0)


def test_what_a_reward_prints_is_bounded(hurts, capfd):
    outcomes, counts, _ = outcomes_of(hurts, "prints 50", "x")
    assert (outcomes, counts.errors) == ([1.0, 1.0], 0)
    printed = capfd.readouterr().err
    assert "all work and no play" in printed and printed.count("a reward prints too much") == 1
    assert len(printed) < 1 << 20


def test_what_a_program_of_a_reward_prints_has_no_secret(hurts, capfd, monkeypatch):
    monkeypatch.setenv("JUDGE_URL", "planted-in-a-file")
    monkeypatch.setenv("AREAL_LIKE_SECRET_NAMES", "JUDGE_URL")
    outcomes, _, _ = outcomes_of(hurts, "runs env")
    assert outcomes == [1.0]
    printed = capfd.readouterr().err
    assert "JUDGE_URL=<secret>" in printed and "planted-in-a-file" not in printed


@pytest.mark.slow
def test_gigabytes_of_output_neither_fill_a_log_nor_memory(hurts, capfd):
    outcomes, counts, _ = outcomes_of(hurts, "prints 3000", "x", timeout_s=200.0)
    assert (outcomes, counts.errors) == ([1.0, 1.0], 0)
    assert len(capfd.readouterr().err) < 1 << 20


def test_a_reward_that_kills_its_process_group_ends_itself_alone(hurts):
    outcomes, *_ = outcomes_of(hurts, "kills_its_group", "x")
    assert outcomes[0].endswith("it ended its process (SIGKILL)") and outcomes[1] == 1.0


def test_the_keys_are_the_limits_of_a_worker():
    words = ["reward.max_memory_gb=2", "reward.max_cpu_s=3", "reward.max_processes=4", "reward.max_file_gb=5"]
    assert reward_limits(load("grpo.yaml", words).config.reward) == RewardLimits(2, 3, 4, 5)
    assert reward_limits(load("grpo.yaml", ["reward.max_memory_gb=null"]).config.reward).max_memory_gb is None
