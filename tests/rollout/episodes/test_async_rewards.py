"""Async rewards wait concurrently in one child, and each fails alone."""

import asyncio

import pytest

from tests.support.reward_parts import child_of, each, open_pool, reward_spec_in


@pytest.fixture
def reward_spec(tmp_path):
    return reward_spec_in(tmp_path)


def test_async_rewards_wait_concurrently(reward_spec):
    async def main():
        async with open_pool(reward_spec("awaits")) as pool:
            return await each(pool, *(["together"] * 50), "raise", "own")

    outcomes = asyncio.run(main())
    assert outcomes[:50] == [8.0] * 50, "none ended before all had begun"
    assert outcomes[50].endswith("RuntimeError: no judge today") and outcomes[51].endswith("TimeoutError: of its own")


def test_an_async_reward_past_its_deadline_is_cancelled_alone(reward_spec):
    async def main():
        async with open_pool(reward_spec("awaits"), timeout_s=2.0) as pool:
            first = await child_of(pool)
            outcomes = await each(pool, "x", "hang", "xx")
            return outcomes, await child_of(pool) == first, pool.counts.timeouts

    outcomes, same, timeouts = asyncio.run(main())
    assert (outcomes[0], outcomes[2], same, timeouts) == (1.0, 2.0, True, 1)
    assert outcomes[1].endswith("it took longer than 2 s (reward.timeout_s)")


def test_an_async_reward_that_ends_the_shared_process_is_identified(reward_spec):
    async def main():
        async with open_pool(reward_spec("awaits"), retries=0) as pool:
            return await each(pool, "x", "gone", "xx")

    outcomes = asyncio.run(main())
    assert (outcomes[0], outcomes[2]) == (1.0, 2.0)
    assert outcomes[1].endswith("it ended its process (exit code 7)")


def test_an_async_reward_whose_error_has_half_a_character_fails_at_once_and_alone(reward_spec):
    async def main():
        async with open_pool(reward_spec("awaits")) as pool:
            return await each(pool, "half", "xx"), pool.counts

    (half, other), counts = asyncio.run(main())
    assert half.endswith("in awaits: ValueError: no tool named ?") and other == 2.0
    assert (counts.errors, counts.children_lost, counts.timeouts) == (1, 0, 0)


def test_an_async_reward_that_blocks_is_killed(reward_spec, monkeypatch):
    monkeypatch.setattr("areal_like.rollout.episodes.rewards.pool.GRACE_S", 0.3)

    async def main():
        async with open_pool(reward_spec("awaits"), timeout_s=2.0) as pool:
            return await each(pool, "stuck"), await each(pool, "xx")

    stuck, other = asyncio.run(main())
    assert stuck[0].endswith("(reward.timeout_s)") and other == [2.0]


def test_a_late_answer_of_a_replaced_child_is_ignored(reward_spec):
    async def main():
        async with open_pool(reward_spec("awaits")) as pool:
            pool.on_message(pool._seats.inside[0], {"id": 12345, "value": 9.0, "parts": {}})
            return await each(pool, "x")

    assert asyncio.run(main()) == [1.0]
