"""The registry of checks: each asks for facts that exist, and runs where they are known."""

import pytest

from areal_like.config.checks.config_checks import ALLOCATION_CHECKS, NO_EFFECT_CHECKS, START_CHECKS, VALUE_CHECKS
from areal_like.config.checks.registry import Check, not_following, run_checks
from areal_like.config.engines import engine_names
from areal_like.config.problems import Problem, Stage
from areal_like.serving.engines.registry import engine_spec
from launcher.checks.plan_checks import FACTS, PLAN_CHECKS

ALL = (*VALUE_CHECKS, *ALLOCATION_CHECKS, *PLAN_CHECKS, *NO_EFFECT_CHECKS)


def of_values(values):
    yield Problem("a", f"is {values['a']}")


def of_values_and_host(values, host=None):
    yield Problem("b", "is known" if host else "is not known")


def test_a_check_runs_where_its_facts_are_known_and_gives_its_stage():
    checks = (Check("one", Stage.INVALID, of_values), Check("two", Stage.MISSING, of_values_and_host))
    assert run_checks(checks, {}, *Stage) == []
    values = {"values": {"a": 3}}
    assert run_checks(checks, values, *Stage) == [
        Problem("a", "is 3", stage=Stage.INVALID),
        Problem("b", "is not known", stage=Stage.MISSING),
    ]
    assert [problem.message for problem in run_checks(checks, {**values, "host": 1}, Stage.MISSING)] == ["is known"]
    assert run_checks(checks, values, Stage.WARNING) == []


def test_a_problem_that_follows_from_another_is_left_out():
    first, second = Problem("a", "is wrong"), Problem("b", "does not fit a", also=("a",))
    assert not_following([first, second]) == [first]
    assert not_following([second]) == [second]


@pytest.mark.parametrize("check", [*ALL, *(each for name in engine_names() for each in engine_spec(name).checks)])
def test_every_check_asks_for_facts_that_exist(check):
    assert set(check.parameters) <= set(FACTS), check.name


def test_names_of_checks_are_unique():
    names = [check.name for check in ALL]
    assert len(names) == len(set(names))


def test_checks_are_run_at_their_stage():
    """Invalid values where a file is loaded, all others by the plan, and in a trainer those of the configuration."""
    assert {check.stage for check in (*VALUE_CHECKS, *ALLOCATION_CHECKS)} == {Stage.INVALID}
    assert {check.stage for check in PLAN_CHECKS} == set(Stage) - {Stage.INVALID}
    assert {check.stage for check in START_CHECKS} == {Stage.CANNOT_START} and set(START_CHECKS) < set(PLAN_CHECKS)
    alone = [check for check in START_CHECKS if check.needs <= {"config"}]
    assert len(alone) > len(START_CHECKS) / 2
