"""A reward runs in a child that can be killed: any failure is an error of its sample, never a reward of 0."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from areal_like.process.process_tree import descendants_of
from areal_like.rollout.episodes.rewards import RewardError, RewardSpec
from areal_like.rollout.episodes.rewards.base import Reward
from tests.support.commands import REPOSITORY
from tests.support.reward_parts import MINE, ROW, child_of, each, is_alive, open_pool, reward_spec_in


@pytest.fixture
def reward_spec(tmp_path):
    return reward_spec_in(tmp_path)


def test_a_group_of_answers_gets_its_rewards_in_order(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts")) as pool:
            return await pool.score(ROW, ["046", "x", "046"])

    one, none = Reward(1.0, {"right": 1.0, "score": 0.5}), Reward(0.0, {"right": 0.0, "score": 0.5})
    assert asyncio.run(main()) == [one, none, one]


def test_an_argument_of_more_than_64_bits_is_exact(tmp_path):
    (tmp_path / "own.py").write_text("def knows(prompt, completion, limit):\n    return float(limit == 1 << 70)\n")
    spec = RewardSpec("own.py:knows", {"limit": 1 << 70}, None, {}, str(tmp_path), str(tmp_path))

    async def main():
        async with open_pool(spec) as pool:
            return await pool.score(ROW, ["x"])

    assert asyncio.run(main()) == [Reward(1.0)]


def test_half_a_character_in_the_text_of_a_reward_is_replaced(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts")) as pool:
            return await each(pool, "half", "half down"), await pool.score(ROW, ["half a name"]), pool.counts

    (half, down), named, counts = asyncio.run(main())
    assert half.endswith("in acts: ValueError: no tool named ?") and down.endswith("? is down")
    assert named == [Reward(1.0, {"?": 1.0})] and (counts.errors, counts.children_lost) == (2, 0)


def test_a_reward_that_raises_exits_or_crashes_fails_only_its_sample(reward_spec, tmp_path):
    async def main():
        async with open_pool(reward_spec("acts")) as pool:
            outcomes = await each(pool, "046", "raise", "046", "exit", "gone", "046", "crash", "nan", "046")
            return outcomes, pool.counts

    outcomes, counts = asyncio.run(main())
    assert [outcomes[index] for index in (0, 2, 5, 8)] == [1.0] * 4
    line = next(at for at, text in enumerate(MINE.splitlines(), 1) if "no judge today" in text)
    assert outcomes[1] == (
        f"mine.py:acts failed after one try: {tmp_path}/mine.py line {line}, in acts: RuntimeError: no judge today"
    )
    assert outcomes[3].endswith("it called sys.exit('enough')")
    assert outcomes[4].endswith("it ended its process (exit code 7)")
    assert outcomes[6].endswith("it ended its process (SIGSEGV)")
    assert outcomes[7].endswith("it returned nan; a reward is a finite number")
    assert (counts.errors, counts.children_lost, counts.timeouts) == (5, 2, 0)


@pytest.mark.parametrize("how", ["hang", "busy", "stops"])
def test_a_hanging_reward_is_killed_with_its_processes_and_replaced(reward_spec, how):
    async def main():
        async with open_pool(reward_spec("acts"), timeout_s=2.0) as pool:
            first = await child_of(pool)
            began = time.monotonic()
            outcomes = await each(pool, "046", how, "046", "x")
            assert await child_of(pool) != first and not is_alive(first)
            return outcomes, time.monotonic() - began, pool.counts, first

    outcomes, seconds, counts, first = asyncio.run(main())
    assert outcomes[0] == outcomes[2] == 1.0 and outcomes[3] == 0.0
    assert outcomes[1].endswith("it took longer than 2 s (reward.timeout_s)")
    assert seconds > 2.0
    assert (counts.errors, counts.timeouts, counts.children_lost) == (1, 1, 1)
    assert not [line for line in _processes() if f" {first} " in line and "sleep 3599.5" in line]


def _processes():
    return subprocess.run(["ps", "-eo", "pid,pgid,args"], capture_output=True, text=True, check=True).stdout.split("\n")


def test_a_process_that_something_has_stopped_is_replaced_and_a_stopped_template_goes_on(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts"), timeout_s=1.5, retries=5) as pool:
            await pool.score(ROW, ["046"])
            template, computing = pool._seats._starter.keeper.pid, await child_of(pool)
            for process in descendants_of(template):
                if process.session == template or process.pid == computing:
                    os.kill(process.pid, signal.SIGSTOP)
            return await each(pool, "046", "x")

    assert asyncio.run(main()) == [1.0, 0.0]


DIES_AT_FIRST = """
import os, pathlib, signal

class Reward:
    def prepare_reward(self):
        starts = pathlib.Path(__file__).with_name("starts")
        with starts.open("a") as file:
            file.write(".")
        if len(starts.read_text()) < {number}:
            os.kill(os.getpid(), signal.{how})

    def __call__(self, prompt, completion):
        return 1.0
"""


@pytest.mark.parametrize(
    ("how", "number", "setup_s"), [("SIGKILL", 2, 120.0), pytest.param("SIGSTOP", 2, 20.0, marks=pytest.mark.slow)]
)
def test_a_process_that_dies_or_stops_while_it_starts_is_replaced(tmp_path, how, number, setup_s):
    (tmp_path / "dies.py").write_text(DIES_AT_FIRST.format(number=number, how=how))
    spec = RewardSpec("dies.py:Reward", {}, None, {}, str(tmp_path), str(tmp_path))

    async def main():
        async with open_pool(spec, setup_timeout_s=setup_s) as pool:
            return await each(pool, "x", "y"), pool.counts.errors

    assert asyncio.run(main()) == ([1.0, 1.0], 0)
    assert len((tmp_path / "starts").read_text()) > 1


def test_a_reward_whose_processes_always_die_while_they_start_is_an_error(tmp_path):
    (tmp_path / "dies.py").write_text(DIES_AT_FIRST.format(number=99, how="SIGKILL"))
    spec = RewardSpec("dies.py:Reward", {}, None, {}, str(tmp_path), str(tmp_path))

    async def main():
        async with open_pool(spec) as pool:
            return await each(pool, "x")

    assert "cannot be computed" in asyncio.run(main())[0]


def test_the_deadline_is_that_of_each_sample_not_of_its_place_in_the_queue(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts"), timeout_s=2.0) as pool:
            return await each(pool, *["late"] * 8), pool.counts.errors

    assert asyncio.run(main()) == ([0.0] * 8, 0)


def test_an_error_is_tried_again_and_counted(reward_spec, tmp_path):
    async def main(retries):
        (tmp_path / "count").write_text("")
        async with open_pool(reward_spec("passing"), retries=retries) as pool:
            return await each(pool, "x"), pool.counts.errors

    assert asyncio.run(main(2)) == ([1.0], 2)
    outcomes, errors = asyncio.run(main(1))
    assert "failed after 2 tries" in outcomes[0] and "too early" in outcomes[0]
    assert errors == 2


def test_one_sample_without_a_reward_fails_its_group_and_no_other(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts")) as pool:
            return await asyncio.gather(
                pool.score(ROW, ["046", "raise"]), pool.score(ROW, ["046", "x"]), return_exceptions=True
            )

    bad, good = asyncio.run(main())
    assert isinstance(bad, RewardError) and isinstance(good, list)
    assert [reward.value for reward in good] == [1.0, 0.0]


def test_as_many_answers_as_may_fail_are_left_without_a_reward(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts")) as pool:
            left = await pool.try_score(ROW, ["raise", "046", "nan", "x"], max_failed=2)
            with pytest.raises(RewardError, match="no judge today"):
                await pool.try_score(
                    ROW, ["046", "raise", "nan", "busy"], max_failed=1
                )  # the busy one is not waited for
            return left

    left = asyncio.run(main())
    assert [None if reward is None else reward.value for reward in left] == [None, 1.0, None, 0.0]


def test_a_failure_of_infrastructure_is_retried_and_counted_as_such(reward_spec):
    async def main():
        async with open_pool(reward_spec("acts"), retries=1) as pool:
            return await each(pool, "down", "046"), pool.counts

    (failed, right), counts = asyncio.run(main())
    assert failed.endswith("failed after 2 tries: the judge is down") and right == 1.0
    assert (counts.infrastructure, counts.errors, counts.children_lost) == (2, 2, 0)


def test_a_reward_may_print_and_read_standard_input(reward_spec, capfd):
    async def main():
        async with open_pool(reward_spec("acts")) as pool:
            return await each(pool, "talk", "046")

    assert asyncio.run(main()) == [0.0, 1.0]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "to the log" in captured.err and '"value": 9' in captured.err


@pytest.mark.parametrize("how", ["hang", "gone", "killed", "046"])
def test_what_a_reward_leaves_behind_ends_with_it(reward_spec, tmp_path, how):
    async def main():
        async with open_pool(reward_spec("leaves"), timeout_s=2.0) as pool:
            (outcome,) = await each(pool, how)
            left = int((tmp_path / "pid").read_text())
            if how == "046":
                assert is_alive(left), "the reward runs on"
            else:
                assert not is_alive(left)
            return outcome, left

    outcome, left = asyncio.run(main())
    assert not is_alive(left)
    words = {"hang": "longer than 2 s", "gone": "(exit code 7)", "killed": "(SIGKILL)"}
    assert words[how] in outcome if how in words else outcome == 1.0


def test_the_child_ends_with_its_worker(tmp_path):
    """Also with a worker that is killed while its reward hangs."""
    (tmp_path / "mine.py").write_text(MINE)
    program = f"""
import asyncio, sys
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.pool import RewardPool
from tests.support.reward_parts import child_of

async def main():
    pool = RewardPool(RewardSpec("mine.py:leaves", {{}}, None, {{}}, {str(tmp_path)!r}, "."), 600, 0, 60)
    await pool.ready({{"answer": "1"}})
    await pool.score({{"prompt": ""}}, ["046"])
    print(await child_of(pool), flush=True)
    await pool.score({{"prompt": ""}}, ["hang"])

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    with worker:
        assert worker.stdout is not None
        pids = [int(worker.stdout.readline()), int((tmp_path / "pid").read_text())]
        assert all(map(is_alive, pids))
        worker.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < until
        time.sleep(0.01)
