"""Several processes compute rewards at once, and those that hang do not hold the others up."""

import asyncio
import os
import signal

import pytest

from areal_like.process.process_tree import descendants_of
from areal_like.rollout.episodes.rewards import Reward, RewardSpec
from areal_like.rollout.episodes.rewards import pool as pool_module
from areal_like.rollout.episodes.rewards.limits import RewardLimits
from areal_like.rollout.episodes.rewards.outcomes import RewardCounts
from areal_like.rollout.episodes.rewards.processes import seats
from areal_like.rollout.episodes.rewards.processes.usual_time import CHUNK_S, UNKNOWN_FAR_S, UsualTime
from tests.support.hurting_rewards import HURTING, THREADED
from tests.support.reward_parts import child_of, each, is_alive, open_pool, reward_spec_in

NEVER_S = 600.0
QUICK = ["x"] * 16


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "mine.py").write_text(HURTING)

    (tmp_path / "own.py").write_text(THREADED)

    def spec(name="mine.py:hurts"):
        return RewardSpec(name, {}, None, {}, str(tmp_path), str(tmp_path))

    return spec


def test_as_many_answers_are_computed_at_once_as_there_are_processes(spec):
    async def main():
        async with open_pool(spec(), NEVER_S, processes=3) as pool:
            return await each(pool, *["meets 3"] * 3), pool.counts

    drawn, counts = asyncio.run(main())
    assert len(set(drawn)) == 3, "forks of one process draw different numbers"
    assert counts.errors == counts.children_lost == 0


def test_answers_that_hang_wait_for_their_deadline_outside_of_the_pool(spec):
    async def main():
        async with open_pool(spec(), NEVER_S) as pool:
            await each(pool, *QUICK)
            hanging = [asyncio.create_task(each(pool, "sleeps 3600")) for _ in range(3)]
            await asyncio.sleep(0)
            assert await each(pool, *QUICK) == [1.0] * 16, "with a single process in the pool"
            while len(pool._seats.outside) < 3:
                await asyncio.sleep(0.01)
            assert not any(task.done() for task in hanging)
            while not all(os.getpriority(os.PRIO_PROCESS, seat.pid) == 19 for seat in pool._seats.outside):
                await asyncio.sleep(0.01)
            return pool.counts

    counts = asyncio.run(main())
    assert counts.errors == counts.children_lost == 0


def test_no_more_than_so_many_leave_the_pool(spec, monkeypatch):
    monkeypatch.setattr(seats, "OUTSIDE_FACTOR", 1)

    async def main():
        async with open_pool(spec(), timeout_s=2.0) as pool:
            await each(pool, *QUICK)
            hanging = asyncio.create_task(each(pool, *["sleeps 3600"] * 2))
            await asyncio.sleep(0)
            assert await each(pool, "x") == [1.0]
            assert pool.counts.timeouts >= 1, "it had to wait for a deadline"
            return await hanging

    assert all(outcome.endswith("longer than 2 s (reward.timeout_s)") for outcome in asyncio.run(main()))


def test_of_those_that_compute_fewer_leave_the_pool_than_of_those_that_wait(spec, monkeypatch):
    """Many that compute slow each other so much that more and more would leave."""
    monkeypatch.setattr(seats, "COMPUTING_FACTOR", 1)

    async def main():
        async with open_pool(spec(), timeout_s=3.0) as pool:
            await each(pool, *QUICK)
            waiting = asyncio.create_task(each(pool, *["sleeps 3600"] * 2))
            while len(pool._seats.outside) < 2:
                await asyncio.sleep(0.01)
            computing = asyncio.create_task(each(pool, *["burns"] * 2))
            await asyncio.sleep(0)
            assert await each(pool, "x") == [1.0]
            assert pool.counts.timeouts >= 3, "it had to wait for a deadline of one that computes"
            return [*await waiting, *await computing]

    assert all(outcome.endswith("longer than 3 s (reward.timeout_s)") for outcome in asyncio.run(main()))


def test_a_slow_answer_gets_its_reward_outside_of_the_pool(spec):
    async def main():
        async with open_pool(spec(), NEVER_S) as pool:
            await each(pool, *QUICK)
            slow = asyncio.create_task(each(pool, "sleeps 2"))
            while not pool._seats.outside:
                await asyncio.sleep(0.01)
            return await slow, pool.counts.children_lost

    assert asyncio.run(main()) == ([1.0], 0)


def test_a_part_that_hangs_beside_one_that_waits_fails_its_own_answer_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "GRACE_S", 0.1)
    part = {"weight": 1.0, "args": dict[str, str](), "label": None}
    parts = [{"name": f"mine.py:{name}", **part} for name in ("awaits", "acts")]
    spec = reward_spec_in(tmp_path)()._replace(parts=parts)

    async def main():
        async with open_pool(spec, timeout_s=1.5, retries=1) as pool:
            return await each(pool, *["046"] * 7, "hang", *["046"] * 12)

    outcomes = asyncio.run(main())
    assert "took longer than 1.5 s" in outcomes.pop(7)
    assert outcomes == [4.0] * 19


def test_the_deadline_of_an_answer_begins_when_it_has_its_turn(tmp_path, monkeypatch):
    """All together take longer than the time after which the process of a single one is killed."""
    monkeypatch.setattr(pool_module, "GRACE_S", 0.1)

    async def main():
        async with open_pool(reward_spec_in(tmp_path)("queued"), timeout_s=1.5) as pool:
            return await each(pool, *["046"] * 5), pool.counts

    assert asyncio.run(main()) == ([1.0] * 5, RewardCounts())


def test_a_reward_that_leaves_threads_is_imported_by_each_process(spec):
    async def main():
        async with open_pool(spec("own.py:threaded"), NEVER_S) as pool:
            return await each(pool, "x", "gone", "x")

    first, gone, last = asyncio.run(main())
    assert (first, last) == (1.0, 1.0) and gone.endswith("(exit code 7)")


def test_a_template_that_is_killed_is_replaced(spec):
    async def main():
        async with open_pool(spec(), NEVER_S, retries=1) as pool:
            before = await child_of(pool)
            os.kill(descendants_of(pool._seats._starter.keeper.pid)[0].pid, signal.SIGKILL)
            while is_alive(before):
                await asyncio.sleep(0.01)
            return await each(pool, "x", "x")

    assert asyncio.run(main()) == [1.0, 1.0]


def test_results_that_hang_the_math_reward_end_at_their_deadline(spec):
    hanging = [r"\binom{10^9}{10^8}", r"\binom{10^8}{10^7}", r"\binom{10^9}{10^7}"]
    row = {"prompt": "", "answer": r"\frac{x + 1}{2}"}

    async def main():
        math = RewardSpec("math", {}, None, {}, ".", ".")
        async with open_pool(math, timeout_s=3.0, row=row, processes=2, limits=RewardLimits(max_memory_gb=2)) as pool:
            answers = [f"\\boxed{{{text}}}" for text in (*hanging, r"\frac{1}{2}(x + 1)", "x")]
            scored = await asyncio.gather(*(pool.score(row, [each]) for each in answers), return_exceptions=True)
            return scored, pool.counts.errors

    (*failed, right, wrong), errors = asyncio.run(main())
    assert [str(error)[-17:] for error in failed] == ["reward.timeout_s)"] * 3 and errors == 3
    assert (right, wrong) == ([Reward(1.0)], [Reward(0.0)])


def test_what_is_usual_is_the_median_of_the_latest_answers():
    usual = UsualTime()
    assert (usual.far_s, usual.chunk) == (UNKNOWN_FAR_S, 1)
    for seconds in [0.02] * 7 + [9.0]:
        usual.add(seconds)
    assert (usual.far_s, usual.very_far_s) == pytest.approx((0.06, 0.2))
    assert usual.chunk == 1
    for _ in range(64):
        usual.add(0.001)
    assert (usual.far_s, usual.chunk) == (0.05, int(CHUNK_S / 0.001))
