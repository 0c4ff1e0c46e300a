"""Weighted sums of rewards: their value, their parts, and their failures."""

import asyncio

import pytest

from areal_like.config.problems import ConfigError
from areal_like.rollout.episodes.rewards import RewardError, load_reward
from areal_like.rollout.episodes.rewards.base import Reward, RewardCall, parse_reward
from areal_like.rollout.episodes.rewards.outcomes import RewardCounts
from areal_like.rollout.episodes.rewards.weighted_sum import Part, PartialSum, WeightedSum, added
from tests.support.hurting_rewards import HURTING
from tests.support.reward_parts import open_pool, reward_spec_in

ROW = {"prompt": "12+34=", "answer": "046"}
CALLED = """
from pathlib import Path

async def called(prompt, completion):
    with (Path(__file__).parent / "calls").open("a") as file:
        file.write(completion + " ")
    return 1.0
"""


def part(name, weight=1.0, label=None, **args):
    return {"name": name, "weight": weight, "args": args, "label": label}


def sum_in(tmp_path, *parts):
    return reward_spec_in(tmp_path)()._replace(parts=parts)


async def reward_of(spec, completion):
    async with open_pool(spec, row=ROW) as pool:
        return (await pool.score(ROW, [completion]))[0]


def test_a_sum_adds_weighted_values_and_reports_raw_ones(tmp_path):
    spec = sum_in(tmp_path, part("exact", 2.0), part("length", 0.5, limit=10))
    reward = asyncio.run(reward_of(spec, "046"))
    assert reward.value == pytest.approx(2 - 0.15)
    assert reward.parts == {"exact": 1.0, "length": pytest.approx(-0.3), "score": 1.0}


def test_parts_of_a_part_keep_their_names_and_the_first_part_is_the_score(tmp_path):
    spec = sum_in(tmp_path, part("addition", label="sum"), part("mine.py:acts", 10.0))
    reward = asyncio.run(reward_of(spec, "046"))
    assert reward.value == pytest.approx(11)
    assert reward.parts == {
        **{"sum": 1.0, "sum/digits": pytest.approx(0.3), "sum/exact": pytest.approx(0.7), "sum/score": 1.0},
        **{"acts": 1.0, "acts/right": 1.0, "acts/score": 0.5, "score": 1.0},
    }


def test_a_part_may_wait_for_a_service(tmp_path):
    spec = sum_in(tmp_path, part("mine.py:awaits"), part("exact", 0.5), part("mine.py:Judge", worth=0.25))
    reward = asyncio.run(reward_of(spec, "046"))
    assert reward.value == pytest.approx(3 + 0.5 + 0.25)
    assert reward.parts == {"awaits": 3.0, "exact": 1.0, "Judge": 0.25, "score": 3.0}


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (["exact", "length"], []),
        (["model"], []),
        (["exact", "model", "mine.py:awaits"], [0, 2]),
    ],
)
def test_secrets_are_for_the_parts_that_query_the_reward_model_alone(tmp_path, names, others):
    spec = sum_in(tmp_path, *map(part, names))
    assert spec.without_model == others
    assert spec.queries_model == (names == ["model"])
    if others:
        assert not spec._replace(only=others).queries_model
        assert spec._replace(only=[1]).queries_model


def test_a_reward_of_the_task_gets_no_secrets(tmp_path):
    assert not reward_spec_in(tmp_path)(task="addition").queries_model


async def waits(prompt, completion):
    return {"right": 1.0, "score": 0.5}


def test_sums_of_some_parts_give_what_the_whole_sum_gives():
    def computes(prompt, completion):
        return {"a/score": 0.25, "b": 0.1}

    parts = [
        *(Part("score", 0.3, RewardCall(waits, "waits", {})), Part("x", 0.1, RewardCall(computes, "computes", {}))),
        *(Part("y", -0.7, RewardCall(waits, "waits", {})), Part("z", 0.9, RewardCall(computes, "computes", {}))),
    ]
    whole = asyncio.run(WeightedSum(parts)("", "", {}))
    waiting = asyncio.run(PartialSum({0: parts[0], 2: parts[2]}, others=[1, 3])("", "", {}))
    computed = PartialSum({1: parts[1], 3: parts[3]})("", "", {})
    assert added(parts, [computed, waiting]) == whole
    assert whole.parts["x/a/score"] == 0.25 and whole.parts["score"] == 0.5


def test_parts_that_compute_do_so_in_their_own_processes_beside_parts_that_wait(tmp_path):
    """The computing part goes on once three processes have begun, the waiting one once 50 answers wait."""
    (tmp_path / "hurting.py").write_text(HURTING)
    spec = sum_in(tmp_path, part("mine.py:awaits"), part("hurting.py:hurts"))

    async def main():
        async with open_pool(spec, timeout_s=600.0, row=ROW, processes=3) as pool:
            met = await pool.score(ROW, ["meets 3"] * 3)
            together = await pool.score(ROW, ["together"] * 50)
            return [each.parts["awaits"] for each in met], [each.value for each in together], pool.counts

    met, together, counts = asyncio.run(main())
    assert (met, together) == ([7.0] * 3, [9.0] * 50)
    assert counts == RewardCounts()


def test_a_part_that_fails_leaves_its_answer_without_a_reward_and_costs_no_call_of_a_service(tmp_path):
    (tmp_path / "service.py").write_text(CALLED)
    spec = sum_in(tmp_path, part("service.py:called"), part("mine.py:acts", 2.0))

    async def main():
        async with open_pool(spec, row=ROW) as pool:
            found = await pool.try_score(ROW, ["046", "raise", "1", "down"], max_failed=2)
            with pytest.raises(RewardError, match="RuntimeError: no judge today"):
                await pool.try_score(ROW, ["raise", "046"], max_failed=0)
            return [each and each.value for each in found], pool.counts.infrastructure

    assert asyncio.run(main()) == ([3.0, None, 1.0, None], 1)
    assert {*(tmp_path / "calls").read_text().split()} == {"046", "1"}


def test_an_error_names_its_part(tmp_path):
    spec = sum_in(tmp_path, part("exact"), part("mine.py:acts", label="mine"))
    with pytest.raises(Exception, match=r"exact, mine failed after one try: ValueError: part mine: it returned nan"):
        asyncio.run(reward_of(spec, "nan"))


def test_the_reward_of_the_task_may_be_a_part(tmp_path):
    spec = sum_in(tmp_path, part("task", 2.0), part("exact"))._replace(task="addition")
    assert asyncio.run(reward_of(spec, "046")).parts["task/digits"] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (part("task"), "reward.parts.1.name: is the reward of the task, and there is no task: name a reward"),
        (part("mine.py:acts", scale=2), "reward.parts.1.args: mine.py:acts takes no argument 'scale'"),
        (part("mine.py:MINE"), "reward.parts.1.name: "),
        (part("mine.py:Judge"), "reward.parts.1.args: mine.py:Judge cannot be created with no arguments"),
    ],
)
def test_a_part_that_cannot_be_made_is_named(tmp_path, wrong, message):
    with pytest.raises(ConfigError) as caught:
        load_reward(sum_in(tmp_path, part("exact"), wrong))
    assert str(caught.value).startswith(message)


def test_the_sum_needs_what_its_parts_need(tmp_path):
    spec = sum_in(tmp_path, part("random"), part("exact"))

    async def main():
        async with open_pool(spec, row={"prompt": "a", "solution": "b"}):
            pass

    with pytest.raises(ConfigError, match=r"reward\.parts: the sum of random, exact needs 'answer' of a row"):
        asyncio.run(main())


def test_a_reward_may_return_the_value_and_its_parts():
    assert parse_reward(Reward(2.0, {"a": 1.0})) == Reward(2.0, {"a": 1.0})
    with pytest.raises(ValueError, match="its part 'a' is nan"):
        parse_reward(Reward(2.0, {"a": float("nan")}))
