"""A reward and a limit that a group brought with its task are reported beside another task or other rows."""

from pathlib import Path

import pytest

from launcher.plan.build import build_plan
from tests.launcher.checks.test_configuration import warned
from tests.support.planning import load_text, machine_with, plan_of

LENGTH, REWARD = "train_dataset.max_length", "reward.name"
FILE = ("task.name=null", "train_dataset.path=rows.jsonl", "valid_dataset=null")
OWN = """
class Five:
    def rows(self, split):
        return [{"prompt": "1+1=", "answer": "2"}] * 10

    def reward(self, prompt, completion, answer):
        return 5.0


class Rows:
    def rows(self, split):
        return [{"prompt": "1+1=", "answer": "2"}] * 10
"""


@pytest.fixture
def five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "five.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("task", ["five.py:Five", "reversing"])
def test_a_reward_of_a_group_in_place_of_that_of_the_users_task_is_a_warning(five: None, task: str) -> None:
    (warning,) = warned(plan_of("grpo", f"task.name={task}"), REWARD)
    reason = f"so the reward of {task} has no effect; reward.name=null uses it"
    assert warning == f"reward.name: is addition (conf/task/addition.yaml:9), {reason}"


def test_a_task_that_the_users_file_names_is_one_of_the_user(five: None) -> None:
    text = "defaults: [grpo, _self_]\ntask: {name: 'five.py:Five'}\n"
    named = f"{text}reward: {{name: addition}}\n"
    found = [warned(build_plan(load_text(each), host=machine_with()), REWARD) for each in (text, named)]
    assert found[0] and not found[1]


@pytest.mark.parametrize(
    "words",
    [
        ("task.name=five.py:Five", "reward.name=null"),
        ("task.name=five.py:Five", "reward.name=exact"),
        ("task.name=five.py:Rows",),
        ("task.name=addition", "+task.args.digits=3"),
        ("task=reversing",),
        FILE,
    ],
)
def test_a_reward_that_is_meant_gives_no_warning(five: None, words: tuple[str, ...]) -> None:
    assert not warned(plan_of("grpo", *words), REWARD)


@pytest.mark.parametrize("experiment", ["grpo", "sft", "reward_model"])
def test_the_limit_of_a_tasks_rows_is_a_warning_for_rows_of_a_file(experiment: str) -> None:
    (warning,) = warned(plan_of(experiment, *FILE), LENGTH)
    reason = "and the rows come from rows.jsonl: longer ones are left out; give it a value, or null"
    assert warning == f"{LENGTH}: is 32 (conf/task/addition_data.yaml:7), {reason}"


@pytest.mark.parametrize("words", [(), (*FILE, f"{LENGTH}=64"), (*FILE, f"{LENGTH}=null"), ("task=reversing",)])
def test_a_limit_that_is_meant_gives_no_warning(words: tuple[str, ...]) -> None:
    assert not warned(plan_of("sft", *words), LENGTH)


def test_a_limit_in_the_body_of_a_file_is_no_tasks() -> None:
    assert not warned(plan_of("smollm2_sft", *FILE), LENGTH)
