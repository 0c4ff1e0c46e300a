"""Evaluations of several kinds of rows: order, intervals, versions, and what a checkpoint keeps."""

import pytest

from areal_like.rollout.groups import Group, Result
from areal_like.rollout.settings import rollout_settings
from areal_like.rollout.step_metrics import spread_metrics
from tests.support.rollout_world import World, clock, evaluated, grpo, settings

VALID, BENCHMARK = evaluated(clock=clock(freq_steps=4)), evaluated(name="b", clock=clock(freq_steps=3), n_samples=2)


def two(**changes: object) -> World:
    return World(settings(evaluated=(VALID, BENCHMARK), total_epochs=3, **changes), 16, valid_rows=3, benchmark_rows=2)


def evaluations(world: World) -> list[tuple[str, int]]:
    """Run to its end: (name, version) in the order of their ends."""
    world.run()
    for _ in range(6):
        world.load_all()
        world.lease()
        world.finish_all()
    events = [event for event in world.events if event["event"] == "evaluated"]
    return [(event.get("benchmark", ""), event["version"]) for event in events]


def test_each_kind_of_rows_has_its_own_interval() -> None:
    found = evaluations(two(synchronous=True))
    assert [version for name, version in found if not name] == [0, 4, 8, 12]
    assert [version for name, version in found if name] == [0, 3, 6, 9, 12]


def test_the_controller_says_which_evaluations_are_due_after_a_step_also_if_it_is_asked_again() -> None:
    world = two(synchronous=True)
    world.run(until=4)
    evaluations = world.loop.evaluations
    assert evaluations.due_after(4) == [""] and evaluations.due_after(2) == []
    assert world.loop.done(3) is None and evaluations.due_after(4) == [""]


@pytest.mark.shows("evaluator.eval_base_model")
def test_the_model_before_the_first_step_is_left_out_on_request() -> None:
    evaluated_first = rollout_settings(grpo("evaluator.eval_base_model=false")).evaluates_base_model
    found = evaluations(two(synchronous=True, evaluates_base_model=evaluated_first))
    assert min(version for _, version in found) == 3


def test_weights_are_held_until_all_first_evaluations_are_complete() -> None:
    world = two(max_concurrent=2)
    world.load()
    while world.loop.evaluations.due == 0 or world.loop.evaluations.current is not None:
        assert world.loop.evaluations.held_version == 0
        leases = [lease for lease in world.lease() if lease.group.evaluation == 0]
        assert len({lease.group.evaluated.name for lease in leases if lease.group.evaluated}) == 1, "one at a time"
        for lease in leases:
            world.finish(lease)
    assert world.loop.evaluations.held_version is None


def test_leases_of_a_benchmark_name_its_rows_its_number_of_answers_and_its_sampling() -> None:
    world = two(max_concurrent=2)
    world.load()
    while not (found := [lease for lease in world.lease() if lease.group.evaluated == BENCHMARK]):
        world.finish_all()
    wire = found[0].wire(world.settings)
    assert (wire["split"], wire["n"], wire["purpose"]) == ("benchmark/b", 2, "eval")
    assert wire["id"].startswith("eval-b-0-")
    assert wire["sampling"] == BENCHMARK.sampling


def test_metrics_of_a_benchmark_have_its_name_and_those_of_all_rows_none() -> None:
    world = two(synchronous=True)
    evaluations(world)
    first, second = world.scores[0][1], world.scores[1][1]
    assert first["eval/rows"] == 3 and not [name for name in first if "pass@" in name or "avg@" in name]
    assert first["eval/score_low"] <= first["eval/score"] <= first["eval/score_high"], "also of one answer per row"
    assert {name.split("/")[1] for name in second if name != "eval/due_step"} == {"b"}
    assert (second["eval/b/rows"], second["eval/b/samples"], second["eval/b/score"]) == (2, 4, 0.5)
    assert (second["eval/b/avg@2"], second["eval/b/pass@2"]) == (0.5, 1.0)


def test_rows_and_noise_of_a_benchmark_are_its_own() -> None:
    world = World(settings(evaluated=(evaluated(), evaluated(name="b"))), valid_rows=9, benchmark_rows=9)
    world.inspect()
    plans = world.loop.evaluations.plans
    assert all(plan.is_read for plan in plans)
    assert plans[0].rows != plans[1].rows and sorted(plans[0].rows) == sorted(plans[1].rows)
    seeds = [{group.row: group.seed for group in plan.begin().waiting} for plan in plans]
    assert not set(seeds[0].values()) & set(seeds[1].values())


def test_a_checkpoint_keeps_what_is_due_for_each_kind_of_rows() -> None:
    expected, world = two(synchronous=True), two(synchronous=True)
    expected.run()
    world.run(until=3)
    world.save()
    assert world.saved.header["evaluations"]["by_name"]["b"]["due"] == 3
    world.begin()
    world.run()
    assert {event["version"] for event in world.events if event.get("benchmark")} >= {0, 3, 6, 9}


def test_a_checkpoint_of_the_time_before_benchmarks_is_read() -> None:
    world = two()
    timer = world.loop.evaluations.plans[0].timer.state()
    world.loop.evaluations.restore({"timer": timer, "due": 4})
    assert [plan.due for plan in world.loop.evaluations.plans] == [4, 0]
    world.loop.evaluations.restore({"timer": None, "due": None})


def test_a_score_of_too_few_rows_is_missing_with_its_band_and_pass_at_k() -> None:
    config = settings(evaluated=(BENCHMARK,), request_retries=0, evaluation_max_failed_share=0.1)
    world = World(config, benchmark_rows=2)
    world.load()
    first, second = (lease for lease in world.lease() if lease.group.evaluated)
    world.finish(first, "failed", error="boom", error_kind="reward")
    world.finish(second)
    ((_, values),) = world.scores
    assert all(values[f"eval/b/{name}"] != values[f"eval/b/{name}"] for name in ("score", "score_low", "pass@2_high"))
    assert values["eval/b/failed"] == 1


def test_rows_with_too_few_answers_are_in_no_pass_at_k_of_more() -> None:
    values = spread_metrics([[1.0, 0.0, 0.0], [1.0]])
    assert values["eval/pass@3"] == 1.0 and values["eval/pass@2"] == pytest.approx(2 / 3)
    assert values["eval/score"] == 0.5 and values["eval/avg@3"] == pytest.approx(2 / 3)
    assert Group(0, 0, 0, 1).name == "0" and Result("a", "done").texts == {}


@pytest.mark.parametrize(("valid", "benchmark"), [(2, 2), (5, 1), (1, 5), (3, 2)])
@pytest.mark.parametrize("evaluators", [0, 1])
def test_each_kind_of_rows_gets_its_turn_where_evaluations_take_longer_than_the_interval(
    valid: int, benchmark: int, evaluators: int
) -> None:
    kinds = (evaluated(clock=clock(freq_steps=valid)), evaluated(name="b", clock=clock(freq_steps=benchmark)))
    some = settings(evaluated=kinds, total_epochs=9, num_evaluators=evaluators)
    world = World(some, 16, valid_rows=3, benchmark_rows=2)
    for turn in range(40):
        world.load_all()
        world.lease()
        for lease, _ in list(world.leases.values()):
            if lease.group.evaluation is None or turn % 6 == 5:
                world.finish(lease)
        world.train()
    events = [event for event in world.events if event["event"] == "evaluated"]
    names = [event.get("benchmark", "") for event in events]
    assert world.step > 20 and len(names) == 6 and names.count("b") == 3
    if evaluators:
        assert all(event["versions"] == [event["version"]] * 2 for event in events), "the weights of its step"
    assert world.problems() == []


def test_whose_turn_it_is_is_the_same_after_a_recovery() -> None:
    world = two(synchronous=True)
    world.run(until=12)
    first, second = world.loop.evaluations.plans
    first.completed, second.completed = 12, 9
    state = world.loop.evaluations.state(12)
    again = two(synchronous=True).loop.evaluations
    again.restore(state)
    again.step_completed(16, last=True)
    assert [plan.completed for plan in again.plans] == [12, 9] and again._next is again.plans[1]
