"""Evaluations: when they are due, and which version they report."""

import math

import pytest

from areal_like.rollout.decisions import Fail
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.step_metrics import evaluation_metrics
from tests.support.rollout_world import World, clock, evaluated, facts, settings


def evaluating(frequency=None, evaluated_with=None, **changes):
    rows = evaluated(clock=clock(**(frequency or {"freq_steps": 1})), **(evaluated_with or {}))
    return settings(evaluated=(rows,), **changes)


def due_versions(world: World) -> list[int]:
    """The versions that were evaluated, in a run without failures."""
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
def test_each_frequency_counts_alone_and_first_and_last_weights_are_evaluated(frequency, versions):
    world = World(evaluating(frequency, total_epochs=3, synchronous=True), rows=16, valid_rows=3)
    assert due_versions(world) == versions


def test_without_rows_or_a_clock_nothing_is_evaluated():
    assert due_versions(World(evaluating(), valid_rows=0)) == []
    assert due_versions(World(settings(), valid_rows=4)) == []


def test_evaluations_are_leased_without_the_gate_and_alternate_with_training():
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


def test_evaluations_come_after_the_training_groups_of_a_batch_more_and_before_later_ones():
    world = World(evaluating({"freq_steps": 2}, max_concurrent=12, max_staleness=5), rows=40, valid_rows=3)
    world.load()
    leases = world.lease()
    priority = {lease.id: lease.wire(world.settings)["priority"] for lease in leases}
    training = [priority[lease.id] for lease in leases if lease.group.evaluation is None]
    evaluations = [priority[lease.id] for lease in leases if lease.group.evaluation is not None]
    assert sorted(training) == list(range(1, 13)), "the oldest group comes first"
    first = [lease.group.evaluation is not None for lease in leases].index(True)
    assert min(evaluations) == 1 + first + world.settings.batch_size > max(training[:first], default=0)
    world.finish_all()
    world.train()
    world.load()
    later = [lease for lease in world.lease() if lease.group.evaluation is None]
    assert max(lease.wire(world.settings)["priority"] for lease in later) > max(evaluations), "none waits for ever"


def begun(world: World, due: int) -> list[Lease]:
    """All leases of the evaluation that is due at this step."""
    while world.loop.evaluations.due != due:
        world.load_all()
        world.lease()
        world.finish_all()
        world.train()
    world.load_all()
    return [lease for lease in world.lease() if lease.group.evaluation == due]


def test_an_evaluation_of_several_versions_is_one_line_that_names_them():
    world = World(evaluating({"freq_steps": 3}, max_concurrent=4), rows=16, valid_rows=4)
    leases = begun(world, due=3)
    world.scores.clear()
    for index, lease in enumerate(leases):
        assert world.scores == [], "no partial mean"
        world.finish(lease, version=3 + index // 3, rewards=[float(index)])
    ((step, values),) = world.scores
    assert (step, values["eval/due_step"], values["eval/samples"], values["eval/score"]) == (3, 3, 4, 1.5)
    assert (values["eval/version_min"], values["eval/version_max"]) == (3, 4)
    event = next(event for event in reversed(world.events) if event["event"] == "evaluated")
    assert (event["answers"], event["versions"]) == (4, [3, 4])


@pytest.mark.parametrize("pin", [False, True])
def test_weights_are_held_for_first_and_last_evaluation_and_with_pin_for_all(pin):
    world = World(evaluating({"freq_steps": 3}, evaluation_pin=pin), rows=16, valid_rows=9)
    held = lambda: world.loop.evaluations.held_version  # noqa: E731
    assert held() == 0, "before any weights are served"
    first = [lease for lease in begun(world, due=0) if lease.group.evaluation == 0]
    while len(world.scores) == 0:
        assert held() == 0
        for lease in first:
            world.finish(lease)
        first = [lease for lease in world.lease() if lease.group.evaluation == 0]
    assert held() is None
    assert begun(world, due=3)
    assert held() == (3 if pin else None)
    world.run()
    assert held() == world.loop.length.total_steps == 8


def test_while_weights_are_held_training_continues_up_to_the_staleness():
    world = World(evaluating(max_staleness=2, max_concurrent=12), rows=16, valid_rows=3)
    for _ in range(9):
        world.load_all()
        for lease in world.lease():
            if lease.group.evaluation is None:
                world.finish(lease)
        world.train()
    assert (world.step, world.loop.server_pool.served_version) == (3, 0)
    assert world.problems() == []
    world.run()
    assert {values["eval/version_max"] for _, values in world.scores if values["eval/due_step"] == 0} == {0}


def test_in_synchronous_mode_no_version_is_held():
    world = World(evaluating(synchronous=True, evaluation_pin=True), rows=16, valid_rows=3)
    assert world.loop.evaluations.due == 0 and world.loop.evaluations.held_version is None


def test_the_same_rows_are_taken_each_time():
    world = World(evaluating(evaluated_with={"num_examples": 3}, synchronous=True), rows=8, valid_rows=10)
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


def first_scores(world: World, outcomes: dict[int, str]) -> dict[str, float]:
    """Scores of the evaluation at the start, with these results of its rows; the others are done."""
    world.load()
    for _ in range(4):
        for lease in world.lease():
            if lease.group.evaluation is not None:
                status = outcomes.get(lease.group.number, "done")
                if status == "failed":
                    world.finish(lease, status, error="boom", error_kind="reward")
                else:
                    world.finish(lease, status)
    ((_, values),) = world.scores
    assert not world.loop.failure
    return values


@pytest.mark.parametrize(("allowed", "has_score"), [(0.5, True), (0.4, False)])
@pytest.mark.parametrize("lost", ["failed", "rejected"])
def test_failed_rows_are_counted_and_too_many_give_no_score(allowed, has_score, lost):
    config = evaluating(request_retries=1, max_concurrent=4, evaluation_max_failed_share=allowed)
    values = first_scores(World(config, valid_rows=4), {1: lost, 2: lost})
    assert (values["eval/rows"], values["eval/samples"], values[f"eval/{lost}"]) == (4, 2, 2)
    for name in ("eval/score", "eval/reward", "eval/part/part"):
        assert math.isfinite(values[name]) == has_score, name
    assert values["eval/truncated_share"] == 0


def test_an_evaluation_with_every_row_rejected_has_no_score():
    values = first_scores(World(evaluating(max_concurrent=4), valid_rows=2), dict.fromkeys(range(2), "rejected"))
    assert math.isnan(values["eval/score"]) and (values["eval/rejected"], values["eval/samples"]) == (2, 0)


def test_an_evaluation_without_any_result_ends_the_run():
    world = World(evaluating(request_retries=0), valid_rows=2)
    world.load()
    for lease in world.lease():
        if lease.group.evaluation is not None:
            world.finish(lease, "failed", error="boom", error_kind="reward")
    assert world.loop.failure.startswith("valid_dataset: not one of 2 rows could be evaluated for version 0")
    assert "boom" in world.loop.failure


def test_the_most_frequent_error_of_an_evaluation_is_kept():
    world = World(evaluating(evaluated_with={"concurrent": 6}, request_retries=0, max_concurrent=12), valid_rows=6)
    world.load()
    leases = [lease for lease in world.lease() if lease.group.evaluation is not None]
    assert len(leases) == 6
    for lease in reversed(leases):
        error = ("rare", "often\n" + "x" * 300, "often\n" + "x" * 300, "rarer")[min(lease.group.number, 3)]
        done = lease.group.number > 3
        world.finish(lease, "done") if done else world.finish(lease, "failed", error=error, error_kind="reward")
    (evaluation,) = world.loop.evaluated
    assert evaluation.most_frequent_error == ("often\n" + "x" * 300, 2)
    assert world.scores[-1][1]["eval/error_rows"] == 2


def test_of_equally_frequent_errors_that_of_the_first_row_is_kept():
    groups = [Group(number, number, 0, 1, 0) for number in range(4)]
    evaluation = Evaluation(evaluated(), 0, groups)
    assert evaluation.most_frequent_error == ("", 0)
    for group, error in list(zip(groups, "abba", strict=True))[::-1]:
        evaluation.apply(Fail(group, Result(group.name, "failed", error=error, error_kind="reward")))
    assert evaluation.most_frequent_error == ("a", 2)


def test_an_early_end_cancels_an_evaluation():
    world = World(evaluating(), valid_rows=3)
    world.load()
    held = [lease for lease in world.lease() if lease.group.evaluation is not None]
    world.loop.evaluations.clear()
    assert world.loop.evaluations.idle
    for lease in held:
        world.finish(lease)
    assert world.scores == []


def test_the_score_is_the_part_of_that_name_or_else_the_reward():
    samples = facts(0, [1.0, 0.0])
    samples[0]["rewards"] = {"score": 0.25}
    samples[1]["rewards"] = {}
    values = evaluation_metrics(samples)
    assert values["eval/score"] == 0.125
    assert (values["eval/reward"], values["eval/part/score"]) == (0.5, 0.25)
