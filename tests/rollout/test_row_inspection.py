"""Rows are inspected shortly before their use: the loop's epochs, its end, and its ledger are as if all were known."""

import pytest

from areal_like.data.row_table import InspectedRow
from areal_like.rollout.row_inspection import AT_ONCE, LIMIT_S
from tests.support.rollout_world import World, clock, evaluated, settings


def submitted(world: World) -> list[tuple[int, int]]:
    return [(event["epoch"], event["row"]) for event in world.events if event["event"] == "submitted"]


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize(("drop_last", "steps"), [(True, 4), (False, 6)])
def test_epochs_shrink_by_the_rows_that_are_too_long(synchronous, drop_last, steps):
    too_long = {1, 5, 6}
    world = World(settings(synchronous=synchronous, drop_last=drop_last), rows=13, too_long=too_long)
    assert world.loop.length.total_steps == (6 if drop_last else 8)
    assert len(world.run()) == steps == world.loop.length.total_steps
    rows = submitted(world)
    first = [row for epoch, row in rows if epoch == 0]
    assert len(set(first)) == len(first) == (8 if drop_last else 10)
    assert not too_long & {row for _, row in rows}
    assert [event for event in world.events if event["event"] == "corrected"] == [
        {"event": "corrected", "rows": 10, "steps": steps}
    ]
    assert sum(values.get("rollout/dropped_too_long", 0) for _, values in world.reports) == 3
    assert world.problems() == []


def test_without_rows_that_are_too_long_nothing_is_corrected_or_reported():
    world = World(settings(), rows=13)
    world.run()
    assert "corrected" not in {event["event"] for event in world.events}
    assert all("rollout/dropped_too_long" not in values for _, values in world.reports)


def test_the_last_batch_has_the_corrected_number_of_steps():
    world = World(settings(synchronous=True, total_epochs=1), rows=40, too_long=range(20, 33))
    limits = []
    while not isinstance(batch := world.train(), str):
        world.load_all()
        world.lease()
        world.finish_all()
        if batch is not None:
            limits.append((batch.header(0)["total_steps"], batch.header(0)["steps_per_epoch"]))
    assert limits[0] == (10, 10) and limits[-1] == (6, 6) and len(limits) == 6


@pytest.mark.parametrize("until", [1, 2, 3])
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_run_that_resumes_uses_the_same_rows(until, synchronous):
    def world() -> World:
        return World(settings(synchronous=synchronous, max_concurrent=4), rows=15, too_long={0, 7, 8})

    whole, resumed = world(), world()
    whole.run()
    resumed.run(until=until)
    resumed.save()
    resumed.begin()
    resumed.run()
    assert submitted(resumed) == submitted(whole)
    assert resumed.loop.length == whole.loop.length and resumed.problems() == []


def test_an_evaluation_has_only_rows_that_are_short_enough():
    config = settings(evaluated=(evaluated(clock=clock(freq_steps=2), num_examples=4),), synchronous=True)
    world = World(config, rows=8, valid_rows=9, too_long={0, 2, 4, 6})
    world.run()
    done = [event for event in world.events if event["event"] == "evaluated"]
    assert [event["rows"] for event in done] == [4] * len(done) and done
    assert {values["eval/samples"] for _, values in world.scores} == {4}


def test_a_synchronous_step_waits_for_the_rows_of_its_evaluation():
    config = settings(evaluated=(evaluated(),), synchronous=True)
    world = World(config, valid_rows=3)
    world.load()
    train = world.loop.inspection.take("episodes/0")
    world.loop.inspected({"train": [InspectedRow(row, 1, False) for row in train["train"]]})
    assert world.loop.lease("episodes/0", 9) == []
    assert list(world.loop.inspection.take("episodes/0")) == ["valid"]


def test_rows_of_a_worker_that_is_gone_or_slow_are_given_to_another():
    world = World(settings(batch_size=40), rows=200)
    first = world.loop.inspection.take("episodes/0")["train"]
    second = world.loop.inspection.take("episodes/1")["train"]
    assert len(first) == AT_ONCE and not set(first) & set(second)
    world.worker_restarts("episodes/0")
    assert world.loop.inspection.take("episodes/2")["train"] == first
    world.time += LIMIT_S + 1
    assert world.loop.inspection.take("episodes/3")["train"] == first


def test_a_row_that_differs_between_processes_ends_the_run():
    world = World(settings())
    row = world.loop.inspection.take("episodes/0")["train"][0]
    for row_hash in (1, 1, 2):
        assert not world.loop.failure
        world.loop.inspected({"train": [InspectedRow(row, row_hash, False)]})
    assert world.loop.failure.startswith(f"train_dataset: row {row} is not the same in all processes")


def test_a_row_of_a_benchmark_that_differs_is_named_with_its_key():
    rows = evaluated(name="b", key="evaluator.benchmarks.0")
    world = World(settings(evaluated=(rows,)), benchmark_rows=3)
    world.load()
    for row_hash in (1, 2):
        world.loop.inspected({rows.split: [InspectedRow(0, row_hash, False)]})
    assert world.loop.failure.startswith("evaluator.benchmarks.0: row 0 is not the same in all processes")


@pytest.mark.parametrize(("drop_last", "rows", "needed"), [(True, 9, 4), (False, 12, 1)])
def test_too_few_rows_that_are_short_enough_end_the_run(drop_last, rows, needed):
    world = World(settings(drop_last=drop_last), rows=12, too_long=range(rows))
    world.load()
    assert world.lease() == []
    left = 12 - rows
    assert world.loop.failure == (
        f"train_dataset.max_length: {rows} of 12 rows have more tokens; {left} are left, and {needed} are needed; "
        "raise it"
    )
