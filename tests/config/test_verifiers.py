"""Ids of environments of verifiers, and what is refused before a start."""

import sys
from pathlib import Path

import pytest

from areal_like.config.environments import environment_name
from areal_like.config.verifiers import package_of, package_task
from tests.ring.start import run


@pytest.mark.parametrize(
    ("name", "task", "called", "module"),
    [
        ("primeintellect/reverse-text", "verifiers:primeintellect/reverse-text", "reverse-text", "reverse_text"),
        ("owner/wordle@0.1.2", "verifiers:owner/wordle@0.1.2", "wordle", "wordle"),
        ("verifiers:wordle", "verifiers:wordle", "wordle", "wordle"),
        ("wordle", "verifiers:wordle", "wordle", "wordle"),
    ],
)
def test_an_id_names_an_installed_package(name: str, task: str, called: str, module: str) -> None:
    package = package_of(task)
    assert package_task(name) == task and environment_name(None, name, "") == called
    assert package is not None and package.module == module


@pytest.mark.parametrize("name", ["addition", "reasoning_gym:chain_sum", "mine.py:Task", "package.module:Task"])
def test_other_tasks_stay_what_they_are(name: str) -> None:
    assert package_task(name) is None


def test_the_command_installs_from_the_index_of_the_owner() -> None:
    package = package_of("verifiers:owner/wordle@0.1.2")
    assert package is not None
    found = package.install_command("/envs/python")
    assert (
        found
        == "/envs/python -m pip install wordle==0.1.2 --extra-index-url https://hub.primeintellect.ai/owner/simple/"
    )


GRPO = "defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]\n"


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (
            "{id: owner/not-there}",
            "environments.train.0.id: not-there is not installed in the environment of the run; `",
        ),
        (
            f"{{id: not-there, python: {sys.executable}}}",
            f"not-there is not installed in the environment of {sys.executable}",
        ),
        ("{id: owner/wordle, python: nowhere/python}", "environments.train.0.python: nowhere/python is not a Python"),
        ("{id: owner/wordle, reward: {name: exact}}", "environments.train.0.reward.name"),
        ("{id: addition, python: python}", "environments.train.0.python"),
        ("{id: beside}", "beside needs the package verifiers"),
    ],
)
def test_what_is_missing_is_refused_with_the_command(environment: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def load_environment(): ...\n")
    (tmp_path / "x.yaml").write_text(f"{GRPO}environments: {{train: [{environment}]}}\nexperiment_name: x\n")
    ended = run(tmp_path, config="x.yaml")
    text = " ".join(f"{ended.out} {ended.err}".split())
    assert ended.code == 2, ended.text
    assert problem in text, ended.text
