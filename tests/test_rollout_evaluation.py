"""Evaluations: when they are due, and for which version an answer counts."""

import pytest

from areal_like.rollout.step_metrics import evaluation_metrics
from tests.rollout_world import World, clock, facts, settings


def evaluating(frequency=None, **changes):
    return settings(evaluation_clock=clock(**(frequency or {"freq_steps": 1})), **changes)


def due_versions(world: World) -> list[int]:
    """The versions that evaluations were due for, in a run without accidents."""
    world.run()
    for _ in range(5):
        world.load_all()
        world.lease()
        world.finish_all()
    return [event["version"] for event in world.events if event["event"] == "evaluated"]


@pytest.mark.parametrize(
    ("frequency", "versions"),
    [
        ({"freq_steps": 3}, [0, 3, 6, 9, 12]),
        ({"freq_epochs": 1}, [0, 4, 8, 12]),
        ({"freq_steps": 3, "freq_epochs": 1}, [0, 3, 4, 6, 8, 9, 12]),
        ({"freq_steps": 5}, [0, 5, 10, 12]),
        ({"freq_secs": 1000}, [0, 12]),
    ],
)
def test_each_clock_strikes_by_itself_and_first_and_last_weights_are_always_evaluated(frequency, versions):
    world = World(evaluating(frequency, total_epochs=3, synchronous=True), rows=16, valid_rows=3)
    assert due_versions(world) == versions


def test_without_rows_or_a_clock_nothing_is_evaluated():
    assert due_versions(World(evaluating(), valid_rows=0)) == []
    assert due_versions(World(settings(), valid_rows=4)) == []


def test_evaluations_are_leased_outside_of_the_gate_and_by_turns_with_training():
    world = World(evaluating(max_concurrent=4, max_staleness=1), rows=8, valid_rows=10)
    world.load()
    leases = world.lease()
    purposes = [lease.wire(world.settings)["purpose"] for lease in leases]
    assert (purposes.count("train"), purposes.count("eval")) == (4, 4)
    assert set(purposes[:2]) == {"train", "eval"}
    wire = next(lease for lease in leases if lease.group.evaluation == 0).wire(world.settings)
    assert (wire["split"], wire["n"], wire["sampling"]["greedy"]) == ("valid", 1, True)
    assert wire["id"].startswith("eval-0-")
    assert world.loop.gate.running == 4


def test_an_answer_counts_for_the_version_of_its_first_token():
    world = World(evaluating(max_concurrent=4), valid_rows=4)
    world.load()
    evaluations = [lease for lease in world.lease() if lease.group.evaluation is not None]
    for index, lease in enumerate(evaluations):
        world.finish(lease, version=index // 3, rewards=[float(index)])
    assert [(version, values["eval/samples"]) for version, values in world.scores] == [(0, 3), (1, 1)]
    assert world.scores[0][1]["eval/score"] == 1.0
    assert world.events[-1]["answers"] == {"0": 3, "1": 1}


def test_the_same_rows_are_taken_each_time():
    world = World(evaluating(evaluation_rows=3, synchronous=True), rows=8, valid_rows=10)
    rows: dict[int, set[int]] = {}
    for _ in range(20):
        world.load_all()
        for lease in world.lease():
            if lease.group.evaluation is not None:
                rows.setdefault(lease.group.evaluation, set()).add(lease.group.row)
        world.finish_all()
        world.train()
    assert len(rows) > 2
    assert len(rows[0]) == 3
    assert all(each == rows[0] for each in rows.values())


def test_a_row_that_cannot_be_evaluated_is_left_out_and_counted():
    world = World(evaluating(request_retries=1, max_concurrent=4), valid_rows=3)
    world.load()
    for _ in range(4):
        for lease in world.lease():
            if lease.group.evaluation is not None:
                if lease.group.number == 1:
                    world.finish(lease, "failed", error="boom", error_kind="reward")
                else:
                    world.finish(lease)
    ((version, values),) = world.scores
    assert (version, values["eval/samples"], values["eval/failed"]) == (0, 2, 1)
    assert not world.loop.failure


def test_an_evaluation_of_which_nothing_comes_back_ends_the_run():
    world = World(evaluating(request_retries=0), valid_rows=2)
    world.load()
    for lease in world.lease():
        if lease.group.evaluation is not None:
            world.finish(lease, "failed", error="boom", error_kind="reward")
    assert world.loop.failure.startswith("valid_dataset: not one of 2 rows could be evaluated for version 0")
    assert "boom" in world.loop.failure


def test_an_early_end_breaks_an_evaluation_off():
    world = World(evaluating(), valid_rows=3)
    world.load()
    held = [lease for lease in world.lease() if lease.group.evaluation is not None]
    world.loop.evaluations.clear()
    assert world.loop.evaluations.idle
    for lease in held:
        world.finish(lease)
    assert world.scores == []


def test_the_score_is_the_part_of_that_name_or_else_the_reward():
    said = facts(0, [1.0, 0.0])
    said[0]["rewards"] = {"score": 0.25}
    said[1]["rewards"] = {}
    values = evaluation_metrics(said)
    assert values["eval/score"] == 0.125
    assert (values["eval/reward"], values["eval/part/score"]) == (0.5, 0.25)
