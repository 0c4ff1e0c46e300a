"""Packages of text environments, and names of puzzles: what is missing is named before any process starts."""

import sys

import pytest

from areal_like.config.problems import Problem
from launcher.checks import environment_packages
from tests.support.planning import plan_of

MADE_UP = {"gymnasium": "not_a_module_1", "openenv": "not_a_module_2", "textarena": "not_a_module_3"}


@pytest.mark.parametrize("name", ["gymnasium:Taxi-v3", "textarena:Wordle-v0", "openenv:http://localhost:1"])
def test_a_missing_package_is_named_with_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_packages, "find_spec", lambda _module: None)
    package = environment_packages.PACKAGES[name.partition(":")[0]]
    (need,) = [each for each in needs(name) if each.key == "environments.train.0.id"]
    assert (
        f"{name} needs the package {package}, which is not installed in the environment of the run; `" in need.message
    )
    assert need.message.endswith(f" {package}` installs it")


def test_an_installed_package_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_packages, "find_spec", lambda _module: object())
    assert needs("gymnasium:Taxi-v3") == []


@pytest.mark.parametrize(("module", "missing"), [("json", False), ("not_a_module_of_anyone", True)])
def test_the_python_of_the_workflow_is_asked(module: str, missing: bool) -> None:
    environment_packages._lacks.cache_clear()
    assert environment_packages._lacks(sys.executable, module) == missing


def test_a_python_that_cannot_be_used_is_a_problem_of_its_key() -> None:
    workflow = ("workflow.name=text_environment", "+workflow.args.python=nowhere/python")
    assert (
        "is not a Python that can be used"
        in {e.key: e.message for e in needs("gymnasium:A", *workflow)}["workflow.args.python"]
    )


def test_a_puzzle_that_does_not_exist_has_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_packages, "puzzles", lambda: frozenset({"chain_sum", "leg_counting"}))
    (need,) = [each for each in needs("reasoning_gym:chain_sun") if "puzzle" in each.message]
    assert need.message == "reasoning-gym has no puzzle chain_sun; did you mean chain_sum?"
    assert [each for each in needs("reasoning_gym:chain_sum") if "puzzle" in each.message] == []


def test_the_puzzles_are_those_that_the_package_registers() -> None:
    factory = pytest.importorskip("reasoning_gym.factory")
    assert environment_packages.puzzles() == set(factory.DATASETS)


def needs(name: str, *more: str) -> list[Problem]:
    trained = f"environments.train=[{{id: '{name}'}}]"
    valid = ("valid_dataset=null", "evaluator.freq_steps=null")
    return list(plan_of("grpo", trained, "task.name=null", "train_dataset.path=''", *valid, *more).needs)
