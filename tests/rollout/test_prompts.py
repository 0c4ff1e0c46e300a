"""Rows of several environments in a curriculum: repeated rows are one prompt, or the environment of each prompt is
drawn; pools are counted for each environment."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_like.config.load import load
from areal_like.data.mixing import ALL_EXHAUSTED, Mix, by_draws, concatenated, in_rotation
from areal_like.data.row_table import KEPT, TOO_LONG, UNKNOWN, RowTable
from areal_like.observe.metrics import METRICS, find_metric
from areal_like.process.errors import Failure
from areal_like.rollout.curriculum.admission import Admission
from areal_like.rollout.curriculum.curriculum import curriculum_of
from areal_like.rollout.curriculum.drawn_order import DrawnOrder
from areal_like.rollout.curriculum.environment_draw import EnvironmentDraw
from areal_like.rollout.curriculum.pool_draw import ASIDE_EASY, EASY, HARD, NORMAL
from areal_like.rollout.curriculum.pools import DifficultyPools
from areal_like.rollout.curriculum.prompts import Prompts, of_mix, unmixed
from areal_like.rollout.curriculum.scored_group import scored_group
from areal_like.rollout.curriculum.settings import CurriculumSettings
from areal_like.rollout.settings import rollout_settings
from tests.support.rollout_world import ROOT, World, facts, settings

NAMES = ("a", "b")


def table_of(num_rows: int, state: int = KEPT) -> RowTable:
    table = RowTable(num_rows)
    table.states[:] = state
    return table


def pools_of(prompts: Prompts, **keys: Any) -> DifficultyPools:
    return DifficultyPools(CurriculumSettings(draws=True, **keys), prompts)


def batches(pools: DifficultyPools, size: int, count: int, table: RowTable | None = None) -> list[list[int]]:
    num_rows = len(pools.prompts.prompt_R)
    order = DrawnOrder(pools, 1, table or table_of(num_rows), pools.prompts, size, drop_last=True)
    assert order.is_known(size * count - 1)
    return [[order.row(size * batch + place) for place in range(size)] for batch in range(count)]


def test_rows_that_a_mix_repeats_are_one_prompt() -> None:
    prompts = of_mix(in_rotation([3, 1], ALL_EXHAUSTED), NAMES)  # a0 b0 a1 b0 a2 b0
    assert prompts.prompt_R.tolist() == [0, 1, 2, 1, 3, 1] and prompts.first_P.tolist() == [0, 1, 2, 4]
    assert prompts.environment_P.tolist() == [0, 1, 0, 0] and prompts.first(5) == 1
    assert of_mix(concatenated([2, 1]), NAMES).prompt_R.tolist() == unmixed(3).prompt_R.tolist() == [0, 1, 2]


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@given(SIZES, st.integers(0, 5))
def test_prompts_are_numbered_as_a_slow_version_does(sizes: list[int], seed: int) -> None:
    mix = by_draws(sizes, [1.0] * len(sizes), ALL_EXHAUSTED, seed)
    seen: dict[tuple[int, int], int] = {}
    expected = [seen.setdefault(pair, len(seen)) for pair in zip(*(each.tolist() for each in mix), strict=True)]
    prompts = of_mix(mix, [f"e{index}" for index in range(len(sizes))])
    assert prompts.prompt_R.tolist() == expected
    assert prompts.first_P.tolist() == [expected.index(number) for number in range(len(seen))]
    assert prompts.environment_P.tolist() == [source for source, _ in seen]


def test_a_batch_has_no_prompt_twice_and_a_repeated_one_is_drawn_more_often() -> None:
    prompts = of_mix(in_rotation([8, 1], ALL_EXHAUSTED), NAMES)  # the prompt of b has 8 of 16 rows
    drawn = batches(pools_of(prompts), size=4, count=400)
    assert all(len(set(batch)) == 4 and set(batch) <= set(prompts.first_P.tolist()) for batch in drawn)
    counts = Counter(row for batch in drawn for row in batch)
    assert counts[1] / 400 > 0.85 and max(counts[row] for row in counts if row != 1) / 400 < 0.55


def test_a_draw_is_the_shuffled_mix_without_its_repeats() -> None:
    prompts = of_mix(in_rotation([4, 2], ALL_EXHAUSTED), NAMES)
    shuffled = np.array([5, 3, 0, 1, 7, 6, 4, 2])
    slow = list(dict.fromkeys(prompts.first(row) for row in shuffled))
    assert prompts.without_repeats(shuffled).tolist() == slow


def test_repeated_rows_share_their_pool() -> None:
    prompts = of_mix(in_rotation([3, 1], ALL_EXHAUSTED), NAMES)
    pools = pools_of(prompts, has_pools=True, easy_border=0.8, hard_border=0.2, easy_threshold=1.0)
    pools.observe(scored_group(3, facts(0, [1.0, 1.0])))
    assert pools.pool_P.tolist() == [NORMAL, ASIDE_EASY, NORMAL, NORMAL]
    assert all(row in (0, 2, 4) for batch in batches(pools, 3, 20) for row in batch)
    pools.start("nehene")  # a letter for each row
    assert pools.pool_P.tolist() == [NORMAL, EASY, HARD, NORMAL]


def test_pools_of_other_data_are_not_resumed() -> None:
    with pytest.raises(Failure, match=r"pools of 9 prompts, and the data has 4; set recover\.skip_curriculum=true"):
        pools_of(unmixed(4)).resume(bytes(9), step=1)


# by_environment


def test_environments_are_drawn_by_their_ratios_and_rows_with_repetition() -> None:
    prompts = of_mix(concatenated([90, 10]), NAMES)
    drawn = np.array(batches(pools_of(prompts, by_environment=True, rates=(1.0, 3.0)), size=50, count=80))
    assert np.mean(drawn >= 90) == pytest.approx(0.75, abs=0.03)
    assert all(len(set(batch)) < 50 for batch in drawn.tolist())
    per_row = np.bincount(drawn[drawn >= 90] - 90)
    assert per_row.min() > 0.7 * per_row.mean() and per_row.max() < 1.3 * per_row.mean()


def test_without_ratios_environments_are_drawn_by_their_size() -> None:
    prompts = of_mix(concatenated([90, 10]), NAMES)
    drawn = np.array(batches(pools_of(prompts, by_environment=True), size=50, count=80))
    assert np.mean(drawn >= 90) == pytest.approx(0.1, abs=0.02)
    assert set(np.array(batches(pools_of(unmixed(3), by_environment=True), 8, 4)).ravel()) == {0, 1, 2}


def draw_slowly(rows: list[list[int]], rates: list[float], too_long: set[int], size: int, seed: int) -> list[int]:
    """Place by place; a row that is too long is drawn again with the next number of its place."""
    draws = np.random.Generator(np.random.PCG64(seed))
    rates = [rate if set(own) - too_long else 0.0 for rate, own in zip(rates, rows, strict=True)]
    sources = draws.choice(len(rows), size=size, p=np.array(rates) / sum(rates)).tolist()
    numbers = [draws.random(size).tolist() for _ in range(101)]
    chosen = []
    for place, source in enumerate(sources):
        short = [row for row in rows[source] if row not in too_long]
        among = [*[rows[source]] * 100, short]
        found = [own[int(one[place] * len(own))] for one, own in zip(numbers, among, strict=True)]
        chosen.append(next(row for row in found if row not in too_long))
    return chosen


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 99), st.data())
def test_each_row_is_drawn_as_a_slow_version_does_whenever_rows_are_inspected(sizes, seed, data) -> None:
    ends = np.cumsum(sizes).tolist()
    rows = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    rates = data.draw(st.lists(st.floats(0.2, 3), min_size=len(sizes), max_size=len(sizes)))
    too_long = data.draw(st.sets(st.integers(1, ends[-1] - 1))) if ends[-1] > 1 else set()
    every, table = [np.array(each) for each in rows], table_of(ends[-1], UNKNOWN)
    for row in too_long:  # an environment without any row is known as such
        table.states[row] = TOO_LONG if all(set(own) <= too_long for own in rows if row in own) else UNKNOWN
    draw = EnvironmentDraw(every, rates, table, 12, seed)
    while (drawn := draw.rows()) is None:
        unknown = draw.unknown()
        assert unknown and all(table.states[row] == UNKNOWN for row in unknown)
        table.states[unknown] = [TOO_LONG if row in too_long else KEPT for row in unknown]
    assert drawn == draw_slowly(rows, rates, too_long, 12, seed)


def test_an_environment_whose_rows_are_all_set_aside_is_not_drawn_and_all_return_once_none_is_left() -> None:
    pools = pools_of(of_mix(concatenated([2, 2]), NAMES), by_environment=True, easy_threshold=1.0)
    for row in (0, 1):
        pools.observe(scored_group(row, facts(0, [1.0, 1.0])))
    assert {row for batch in batches(pools, 8, 5) for row in batch} == {2, 3}
    for row in (2, 3):
        pools.observe(scored_group(row, facts(0, [1.0, 1.0])))
    assert {row for batch in batches(pools, 8, 5) for row in batch} == {0, 1, 2, 3}


def test_without_a_row_that_is_short_enough_nothing_is_drawn() -> None:
    pools = pools_of(unmixed(3), by_environment=True)
    order = DrawnOrder(pools, 1, table_of(3, TOO_LONG), pools.prompts, 4, drop_last=True)
    assert not order.is_known(0)


def read(*overrides: str) -> CurriculumSettings:
    mixed = load(ROOT / "experiments" / "multi_env.yaml", ["rollout.backend=embedded", *overrides])
    return rollout_settings(mixed.config).curriculum


@pytest.mark.shows("curriculum.type", "environments.mix.probabilities", "environments.train[].ratio")
def test_ratios_and_probabilities_are_the_frequencies_of_environments_that_are_drawn() -> None:
    keys = read("curriculum.type=by_environment")
    assert (keys.draws, keys.by_environment, keys.rates, keys.has_pools) == (True, True, (1.0, 2.0), False)
    probabilities = ("environments.train.1.ratio=null", "environments.mix.probabilities=[1, 4]")
    assert read("curriculum.type=by_environment", *probabilities).rates == (1.0, 4.0)


# Metrics of environments.


def test_pools_and_rows_set_aside_are_counted_for_each_of_several_environments() -> None:
    prompts = of_mix(concatenated([3, 2]), NAMES)
    pools = pools_of(prompts, has_pools=True, easy_border=0.8, hard_border=0.2, easy_threshold=1.0)
    for row, reward in ((0, 1.0), (1, 0.9), (3, 0.0), (4, 0.5)):
        pools.observe(scored_group(row, facts(0, [reward])))
    found = {name: value for name, value in pools.metrics().items() if name.startswith("env/")}
    assert find_metric("env/a/normal/all_right") is METRICS["env/*/*/all_right"]
    assert find_metric("env/a/all_right") is METRICS["env/*/all_right"]
    counts = {name: value for name, value in found.items() if name.count("/") == 3}
    assert len(counts) == 2 * 3 * 3
    assert {name: value for name, value in counts.items() if value} == {
        **{"env/a/normal/groups": 2, "env/a/normal/all_right": 1},
        **{"env/b/normal/groups": 2, "env/b/normal/all_wrong": 1},
    }
    assert {name: value for name, value in found.items() if name not in counts} == {
        **{"env/a/normal": 1, "env/a/easy": 1, "env/a/hard": 0, "env/a/aside_easy": 1, "env/a/evicted_easy": 1},
        **{"env/b/normal": 1, "env/b/easy": 0, "env/b/hard": 1, "env/b/aside_easy": 0, "env/b/evicted_easy": 0},
    }
    assert pools.metrics()["env/a/evicted_easy"] == 0
    assert not any(name.startswith("env/") for name in pools_of(unmixed(5, "a")).metrics())


def run_of(mix: Mix, **keys: Any) -> World:
    chosen = CurriculumSettings(**keys)
    world_settings = settings(synchronous=True, max_concurrent=4, total_epochs=20, curriculum=chosen)
    return World(world_settings, len(mix[0]), curriculum=lambda: curriculum_of(chosen, of_mix(mix, NAMES)))


def play(world: World, steps: int) -> list[list[int]]:
    """The rows of each step. Answers to rows 0 and 1, of the environment a, are all wrong."""
    rows: list[list[int]] = []
    while len(rows) < steps:
        world.load_all()
        for lease in world.lease():
            row = lease.group.row
            world.finish(lease, rewards=[0.0, float(row > 1)], environment="a" if row < 3 else "b")
        if (batch := world.train()) is not None:
            rows.append([group.row for group in batch.groups])
    return rows


def test_groups_left_out_are_counted_for_each_of_several_environments() -> None:
    world = run_of(concatenated([3, 7]), admission=Admission(0.2, 0.8))
    play(world, 5)
    total: Counter[str] = Counter()
    for _, values in world.reports:
        total.update(values)
    assert total["env/a/filtered_hard"] == total["curriculum/filtered_hard"] > 0
    assert "env/b/filtered_hard" not in total
    assert total["env/a/finished"] + total["env/b/finished"] == total["curriculum/finished"]
    assert total["env/a/finished"] >= total["env/a/filtered_hard"]


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_resumed_run_of_several_environments_draws_the_same_rows(by_environment: bool) -> None:
    keys = {"draws": True, "seed": 3, "by_environment": by_environment, "hard_threshold": 0.0}
    mix = concatenated([3, 7]) if by_environment else in_rotation([7, 3], ALL_EXHAUSTED)
    whole = play(run_of(mix, **keys), 6)
    resumed = run_of(mix, **keys)
    first = play(resumed, 3)
    resumed.load_all()
    resumed.lease()
    resumed.save()
    resumed.leases.clear()
    resumed.begin()
    assert first + play(resumed, 3) == whole
