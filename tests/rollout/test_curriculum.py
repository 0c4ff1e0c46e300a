"""Rows are drawn by the difficulty that their groups have shown; groups that are too easy or too hard are left out."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from areal_like.data.row_table import KEPT, TOO_LONG, RowTable
from areal_like.rollout.curriculum.admission import Admission, AdvantageRange, MeanReward
from areal_like.rollout.curriculum.drawn_order import DrawnOrder
from areal_like.rollout.curriculum.pool_draw import ASIDE_EASY, ASIDE_HARD, EASY, HARD, NORMAL
from areal_like.rollout.curriculum.pools import DifficultyPools
from areal_like.rollout.curriculum.prompts import Prompts, unmixed
from areal_like.rollout.curriculum.scored_group import ScoredGroup, scored_group
from areal_like.rollout.curriculum.settings import CurriculumSettings
from areal_like.rollout.settings import rollout_settings
from tests.support.rollout_world import World, facts, grpo, settings


def pools_of(num_rows: int = 20, prompts: Prompts | None = None, **keys: Any) -> DifficultyPools:
    usual = {"draws": True, "has_pools": True, "easy_border": 0.8, "hard_border": 0.2}
    return DifficultyPools(CurriculumSettings(**{**usual, **keys}), prompts or unmixed(num_rows))


def order_of(pools: DifficultyPools, batch_size: int, known: bool = True) -> DrawnOrder:
    table = RowTable(len(pools.prompts.prompt_R))
    table.states[:] = KEPT if known else 0
    return DrawnOrder(pools, 1, table, pools.prompts, batch_size, drop_last=True)


def group(row: int, *rewards: float | None) -> ScoredGroup:
    return scored_group(row, facts(0, rewards))


def drawn(order: DrawnOrder, first: int, count: int) -> list[int]:
    assert order.is_known(first + count - 1)
    return [order.row(number) for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("mean", "pool"), [(0.81, EASY), (0.8, NORMAL), (0.5, NORMAL), (0.2, NORMAL), (0.19, HARD), (1.0, EASY)]
)
def test_a_row_is_in_the_pool_of_its_latest_group(mean: float, pool: int) -> None:
    pools = pools_of()
    pools.observe(group(3, 1.0 - mean))
    pools.observe(group(3, mean))
    assert pools.pool_P[3] == pool and pools.pool_P.sum() == pool


def test_rows_set_aside_are_drawn_again_where_a_resumed_run_has_no_threshold_for_them() -> None:
    rows = np.array([ASIDE_EASY, ASIDE_HARD] * 4, np.uint8).tobytes()
    for threshold, kept in ((None, {NORMAL}), (0.1, {NORMAL, ASIDE_HARD})):
        pools = pools_of(num_rows=8, hard_threshold=threshold)
        pools.resume(rows, step=7)
        assert set(pools.pool_P.tolist()) == kept


@pytest.mark.parametrize(("mean", "pool"), [(0.9, ASIDE_EASY), (0.89, NORMAL), (0.11, NORMAL), (0.1, ASIDE_HARD)])
def test_thresholds_are_inclusive_and_set_rows_aside(mean: float, pool: int) -> None:
    pools = pools_of(has_pools=False, easy_threshold=0.9, hard_threshold=0.1)
    pools.observe(group(0, mean))
    assert pools.pool_P[0] == pool


def test_a_batch_has_its_fractions_of_easy_and_hard_rows_and_no_row_twice() -> None:
    pools = pools_of(easy_fraction=0.25, hard_fraction=0.3)
    pools.pool_P[:5], pools.pool_P[5:10] = EASY, HARD
    order = order_of(pools, batch_size=8)
    for step in range(5):
        rows = drawn(order, 8 * step, 8)
        assert pools.pool_P[rows].tolist() == [EASY] * 2 + [HARD] * 2 + [NORMAL] * 4
        assert len(set(rows)) == 8


def test_normal_rows_take_the_place_of_missing_easy_ones_and_others_that_of_missing_normal_ones() -> None:
    pools = pools_of(num_rows=10, easy_fraction=0.5)
    pools.pool_P[:1] = EASY
    rows = drawn(order_of(pools, batch_size=6), 0, 6)
    assert rows[0] == 0 and len(set(rows)) == 6
    pools.pool_P[:8] = HARD
    assert Counter(pools.pool_P[drawn(order_of(pools, batch_size=6), 0, 6)].tolist()) == {NORMAL: 2, HARD: 4}


def test_draws_are_those_of_the_seed_and_follow_what_was_observed() -> None:
    first, again = (drawn(order_of(pools_of(seed=3), 5), 0, 20) for _ in range(2))
    assert first == again != drawn(order_of(pools_of(seed=4), 5), 0, 20)
    assert all(len(set(first[at : at + 5])) == 5 for at in range(0, 20, 5))


def test_rows_that_are_set_aside_are_drawn_again_once_fewer_than_a_batch_are_left() -> None:
    pools = pools_of(num_rows=6, has_pools=False, easy_threshold=1.0)
    order = order_of(pools, batch_size=3)
    for row in range(4):
        pools.observe(group(row, 1.0))
    rows = drawn(order, 0, 3)
    assert set(rows[:2]) == {4, 5} and not (pools.pool_P >= ASIDE_EASY).any()


def test_a_row_is_inspected_before_it_is_drawn_and_a_long_one_is_replaced() -> None:
    pools = pools_of(num_rows=6)
    order = order_of(pools, batch_size=4, known=False)
    assert order.unknown(0) == []
    assert not order.is_known(0)
    unknown = order.unknown(0)
    order._table.states[unknown] = KEPT
    order._table.states[unknown[0]] = TOO_LONG
    assert set(drawn(order, 0, 4)) <= set(unknown[1:])


def test_a_fraction_of_the_rows_set_aside_returns_with_a_checkpoint() -> None:
    fractions = {"easy_return_fraction": 0.5, "hard_return_fraction": 1.0}
    keys: Any = fractions | {"easy_threshold": 1.0, "hard_threshold": 0.0}
    pools = pools_of(num_rows=30, **keys)
    state = np.array([ASIDE_EASY] * 10 + [ASIDE_HARD] * 4 + [EASY] * 16, np.uint8)
    pools.resume(state.tobytes(), step=7)
    assert Counter(pools.pool_P.tolist()) == {ASIDE_EASY: 5, NORMAL: 9, EASY: 16}


def test_all_rows_are_drawn_alike_where_a_checkpoint_of_pools_is_resumed_without_them() -> None:
    pools = pools_of(num_rows=12, has_pools=False, hard_threshold=0.0)
    pools.resume(np.array([EASY, HARD, NORMAL, ASIDE_HARD] * 3, np.uint8).tobytes(), step=7)
    assert Counter(pools.pool_P.tolist()) == {NORMAL: 9, ASIDE_HARD: 3}


@pytest.mark.parametrize(("rows", "fraction", "left"), [(5, 0.5, 3), (7, 0.5, 3), (3, 0.1, 3), (6, 1.0, 0)])
def test_the_number_of_rows_that_return_is_rounded(rows: int, fraction: float, left: int) -> None:
    pools = pools_of(num_rows=rows, easy_return_fraction=fraction, easy_threshold=1.0)
    pools.resume(np.full(rows, ASIDE_EASY, np.uint8).tobytes(), step=1)
    assert int((pools.pool_P == ASIDE_EASY).sum()) == left


@pytest.mark.parametrize(("size", "fraction", "count"), [(16, 0.1, 1), (10, 0.3, 3), (9, 0.1, 0), (8, 1.0, 8)])
def test_fractions_of_a_batch_are_rounded_down(size: int, fraction: float, count: int) -> None:
    pools = pools_of(num_rows=60, easy_fraction=fraction, hard_fraction=0.0)
    pools.pool_P[:20] = EASY
    assert Counter(pools.pool_P[drawn(order_of(pools, size), 0, size)].tolist())[EASY] == count


@pytest.mark.parametrize(
    ("admission", "rewards", "admitted"),
    [
        (Admission(), [1.0, 1.0], True),
        (Admission(mixed_only=True), [1.0, 1.0], False),
        (Admission(mixed_only=True), [0.5, 0.5], True),
        (Admission(0.25, 0.75), [0.0, 0.5], True),
        (Admission(0.25, 0.75), [1.0, 0.5, None], True),
        (Admission(0.25, 0.75), [0.0, 0.4], False),
        (Admission(0.25, None), [1.0, 1.0], True),
        (Admission(None, 0.75), [1.0, 1.0], False),
    ],
)
def test_groups_are_admitted_by_their_mean_reward_with_inclusive_limits(
    admission: Admission, rewards: list[float | None], admitted: bool
) -> None:
    assert admission.admits(group(0, *rewards)) == admitted


def test_the_mean_is_over_answers_with_a_reward_and_a_conversation_counts_once() -> None:
    turns = [{**fact, "conversation": 0} for fact in facts(0, [1.0, 0.0])]
    assert scored_group(0, [*turns, *facts(0, [0.0, None])]).mean_reward == 0.5


def test_built_in_gates_are_for_a_band_of_mean_rewards_and_for_spread() -> None:
    band = MeanReward(low=0.25, high=0.5)
    assert [band.admits(group(0, *each)) for each in ((0.0, 0.5), (1.0, 0.0), (1.0, 0.5))] == [True, True, False]
    assert [AdvantageRange().admits(group(0, *each)) for each in ((0.1,) * 3, (0.1, 0.1, None), (0.1, 0.2))] == [
        *(False, False),
        True,
    ]
    narrow = AdvantageRange(low=-0.2, high=0.2)
    assert not narrow.admits(group(0, 0.3, 0.6)) and narrow.admits(group(0, 0.0, 1.0))


def curriculum(*overrides: str) -> CurriculumSettings:
    return rollout_settings(grpo(*overrides)).curriculum


@pytest.mark.shows("curriculum.type", "curriculum.seed", "curriculum.online_difficulty_filtering")
@pytest.mark.shows("curriculum.easy_border", "curriculum.hard_border")
@pytest.mark.shows("curriculum.easy_fraction", "curriculum.hard_fraction")
def test_keys_of_the_curriculum_reach_it_and_pools_are_those_of_their_type() -> None:
    assert not curriculum().draws and not curriculum().admission.is_limited
    assert curriculum("curriculum.online_difficulty_filtering=true").admission == Admission(None, None, True)
    keys = ("easy_border=0.7", "hard_border=0.3", "easy_fraction=0.25", "hard_fraction=0.5", "seed=9")
    pools = curriculum("curriculum.type=difficulty_pool", *(f"curriculum.{key}" for key in keys))
    assert (pools.easy_border, pools.hard_border, pools.easy_fraction, pools.hard_fraction) == (0.7, 0.3, 0.25, 0.5)
    assert (pools.draws, pools.has_pools, pools.seed) == (True, True, 9)
    simple = curriculum("curriculum.type=simple", "seed=4")
    assert (simple.draws, simple.has_pools, simple.easy_fraction, simple.seed) == (True, False, 0.0, 4)


@pytest.mark.shows("curriculum.min_reward", "curriculum.max_reward")
def test_online_difficulty_has_limits_of_the_mean_reward() -> None:
    online = curriculum("curriculum.type=online_difficulty", "curriculum.min_reward=0.3", "curriculum.max_reward=null")
    assert online.admission == Admission(0.3, None) and online.draws


@pytest.mark.shows("curriculum.easy_threshold", "curriculum.hard_threshold")
@pytest.mark.shows("curriculum.easy_return_fraction", "curriculum.hard_return_fraction")
def test_thresholds_and_what_returns_are_keys_of_every_type_that_draws() -> None:
    keys = ("easy_threshold=0.9", "hard_threshold=0.1", "easy_return_fraction=0.5", "hard_return_fraction=1")
    aside = curriculum("curriculum.type=simple", *(f"curriculum.{key}" for key in keys))
    assert (aside.easy_threshold, aside.hard_threshold) == (0.9, 0.1)
    pools = DifficultyPools(aside, unmixed(20))
    pools.resume(np.array([ASIDE_EASY] * 10 + [ASIDE_HARD] * 10, np.uint8).tobytes(), step=1)
    assert Counter(pools.pool_P.tolist()) == {ASIDE_EASY: 5, NORMAL: 15}


def test_without_refill_groups_of_another_difficulty_leave_a_smaller_batch() -> None:
    played = World(settings(curriculum=CurriculumSettings(admission=Admission(mixed_only=True)), refill=False))
    played.load_all()
    for lease in played.lease(4):
        played.finish(lease, rewards=[1.0, 1.0] if lease.group.number == 0 else [0.0, 1.0])
    assert [group.number for group in played.train().groups] == [1, 2, 3]


def test_without_refill_a_group_of_equal_rewards_is_counted_as_such() -> None:
    limits = CurriculumSettings(admission=Admission(mixed_only=True))
    played = World(settings(curriculum=limits, refill=False, dynamic_sampling=True))
    played.load_all()
    for lease in played.lease(4):
        played.finish(lease, rewards=[1.0, 1.0] if lease.group.number == 0 else [0.0, 1.0])
    played.train()
    assert [event["reason"] for event in played.events if event["event"] == "dropped"] == ["equal"]


def world(synchronous: bool = True, **keys: Any) -> World:
    curriculum = CurriculumSettings(**keys)
    return World(settings(synchronous=synchronous, max_concurrent=4, total_epochs=20, curriculum=curriculum))


def right_from(world: World, row: int) -> None:
    """Answers to rows from this number on are right, all others wrong."""
    for lease, _ in list(world.leases.values()):
        world.finish(lease, rewards=[float(lease.group.row >= row)] * 2)


def play(world: World, steps: int) -> list[list[int]]:
    """The rows of each step."""
    rows = []
    for _ in range(100):
        world.load_all()
        world.lease()
        right_from(world, 5)
        if (batch := world.train()) is not None:
            rows.append([group.row for group in batch.groups])
        if len(rows) == steps:
            return rows
    raise AssertionError(world.where())


def pools_in(world: World) -> DifficultyPools:
    sampler = world.loop.queue.curriculum.sampler
    assert isinstance(sampler, DifficultyPools)
    return sampler


POOLS: dict[str, Any] = {
    "draws": True,
    "has_pools": True,
    "easy_border": 0.8,
    "hard_border": 0.2,
    "easy_fraction": 0.5,
    "seed": 2,
}


def test_batches_have_easy_rows_once_there_are_some() -> None:
    played = world(**POOLS)
    rows = play(played, 6)
    assert all(len(set(step)) == 4 for step in rows)
    assert sum(row >= 5 for row in rows[-1]) >= 2
    _, values = played.reports[-1]
    assert values["curriculum/easy"] + values["curriculum/hard"] + values["curriculum/normal"] == 10
    assert values["curriculum/easy"] > 0 and values["curriculum/hard"] > 0


def test_a_synchronous_run_that_is_resumed_draws_the_same_rows() -> None:
    whole = play(world(**POOLS), 6)
    resumed = world(**POOLS)
    first = play(resumed, 3)
    resumed.load_all()
    resumed.lease()  # the step has begun when the checkpoint is taken
    resumed.save()
    resumed.leases.clear()
    resumed.begin()
    assert first + play(resumed, 3) == whole


@pytest.mark.shows("recover.skip_curriculum")
def test_a_resumed_run_may_forget_the_curriculum() -> None:
    played = world(**POOLS)
    play(played, 3)
    played.save()
    played.begin(forget_curriculum=True)
    assert pools_in(played).pool_P.tolist() == [NORMAL] * 10
    played.begin()
    assert pools_in(played).pool_P.any()


@pytest.mark.parametrize("synchronous", [True, False])
def test_groups_of_another_difficulty_are_replaced(synchronous: bool) -> None:
    played = world(synchronous, admission=Admission(mixed_only=True))
    played.load_all()
    for _ in range(3):
        for lease in played.lease():
            played.finish(lease, rewards=[1.0, 1.0] if lease.group.row < 3 else [0.0, 1.0])
    batch = played.train()
    assert all(group.row >= 3 for group in batch.groups) and len(batch.groups) == 4
    dropped = [event for event in played.events if event["event"] == "dropped"]
    assert {event["reason"] for event in dropped} == {"difficulty"}
    assert played.reports[0][1]["rollout/dropped_difficulty"] == len(dropped) > 0


SIDES = ("hard", "easy")


def test_metrics_count_what_each_pool_gave_and_which_rows_were_set_aside() -> None:
    pools = pools_of(easy_threshold=0.9, hard_threshold=0.0)
    pools.pool_P[:2] = EASY
    for row, rewards in ((0, (1.0, 1.0)), (1, (1.0, 0.5)), (2, (0.0, 0.0)), (3, (0.0, 0.0)), (4, (0.5, 0.0))):
        pools.observe(group(row, *rewards))
    counts = {name.removeprefix("curriculum/"): value for name, value in pools.metrics().items() if value}
    assert counts == {
        **{"normal": 17, "aside_easy": 1, "aside_hard": 2, "evicted_easy": 1, "evicted_hard": 2},
        **{"easy/groups": 2, "easy/all_right": 1, "normal/groups": 3, "normal/all_wrong": 2},
    }
    assert not any(value for name, value in pools.metrics().items() if "/all_" in name or "evicted" in name)


def test_groups_left_out_are_counted_by_the_limit_that_refused_them() -> None:
    played = world(admission=Admission(0.2, 0.8))
    for _ in range(20):
        played.load_all()
        for lease in played.lease():
            row = lease.group.row
            played.finish(lease, rewards=[0.0, 0.2] if row < 3 else [1.0, 0.8] if row < 6 else [0.0, 1.0])
        played.train()
    left_out = [each["row"] for each in played.events if each["event"] == "dropped"]
    counts = {side: sum(values[f"curriculum/filtered_{side}"] for _, values in played.reports) for side in SIDES}
    assert counts == {"hard": sum(row < 3 for row in left_out), "easy": sum(row >= 3 for row in left_out)}
    assert min(counts.values()) > 0
