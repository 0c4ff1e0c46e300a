"""Packages of text environments, and names of puzzles: what is missing is named before any process starts."""

import sys
from pathlib import Path

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


def test_a_python_that_does_not_answer_in_time_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(environment_packages, "PROBE_LIMIT_S", 0.1)
    workflow = ("workflow.name=text_environment", f"+workflow.args.python={slow}")
    plan = plan_of("grpo", *trains_on("gymnasium:A"), *workflow)
    assert any(f"{slow} did not say within 0.1 s whether it has gymnasium" in each for each in plan.warnings)
    assert not [each for each in plan.needs if str(slow) in each.message]


def test_a_puzzle_with_a_file_of_its_name_is_found_without_reading_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.setattr(environment_packages, "puzzles", lambda: pytest.fail("all files are read"))
    assert [each for each in needs("reasoning_gym:chain_sum") if "puzzle" in each.message] == []


def test_a_puzzle_that_does_not_exist_has_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_packages, "puzzles", lambda: frozenset({"chain_sum", "leg_counting"}))
    (need,) = [each for each in needs("reasoning_gym:chain_sun") if "puzzle" in each.message]
    assert need.message == "reasoning-gym has no puzzle chain_sun; did you mean chain_sum?"
    assert [each for each in needs("reasoning_gym:chain_sum") if "puzzle" in each.message] == []


def test_the_puzzles_are_those_that_the_package_registers() -> None:
    factory = pytest.importorskip("reasoning_gym.factory")
    assert environment_packages.puzzles() == set(factory.DATASETS)


def needs(name: str, *more: str) -> list[Problem]:
    return list(plan_of("grpo", *trains_on(name), *more).needs)


def trains_on(name: str) -> tuple[str, ...]:
    valid = ("valid_dataset=null", "evaluator.freq_steps=null")
    return (f"environments.train=[{{id: '{name}'}}]", "task.name=null", "train_dataset.path=''", *valid)
