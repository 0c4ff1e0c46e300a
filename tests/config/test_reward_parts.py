"""`reward.parts` in a configuration: composed, overridden by index, and checked before any process starts."""

from dataclasses import asdict
from pathlib import Path

import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.config.sections.reward import configured_rewards
from areal_like.rollout.episodes.rewards import reward_spec

FILE = """\
experiment_name: sums
actor: {path: some/model}
task: {name: addition}
reward:
  parts:
    - name: math
    - name: format
      weight: 0.1
      args: {boxed: true}
    - {name: "mine.py:short", label: mine}
"""
MINE = "def short(prompt, completion, answer, penalty=0.1): ...\n"


@pytest.fixture
def loaded(tmp_path):
    def load_with(*overrides, text=FILE):
        (tmp_path / "f.yaml").write_text(text)
        (tmp_path / "mine.py").write_text(MINE)
        return load(tmp_path / "f.yaml", overrides)

    return load_with


@pytest.fixture
def refused(loaded):
    def refusal(*overrides, text=FILE):
        with pytest.raises(ConfigError) as caught:
            loaded(*overrides, text=text)
        return [problem.text() for problem in caught.value.problems]

    return refusal


def test_parts_have_defaults_and_labels(loaded):
    config = loaded().config
    assert [asdict(part) for part in config.reward.parts] == [
        {"name": "math", "weight": 1.0, "args": {}, "label": None},
        {"name": "format", "weight": 0.1, "args": {"boxed": True}, "label": None},
        {"name": "mine.py:short", "weight": 1.0, "args": {}, "label": "mine"},
    ]
    assert [each.label for each in configured_rewards(config.reward)] == ["math", "format", "mine"]


def test_an_override_changes_one_part(loaded):
    config = loaded("reward.parts.0.weight=2", "+reward.parts.2.args.penalty=0.5", "reward.parts.1.label=form").config
    math, form, mine = config.reward.parts
    assert (math.weight, form.label, form.args, mine.args) == (2.0, "form", {"boxed": True}, {"penalty": 0.5})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "reward.name=exact",
            "reward.parts [{file}:5]: is a sum of rewards, but reward.name=exact names one;",
        ),
        ("+reward.args.scale=2", "reward.args ["),
        ("reward.parts.1.label=math", "reward.parts.1.label [override reward.parts.1.label=math]: 'math' is the label"),
        ("reward.parts.1.label=score", "'score' is the name of what evaluations report"),
        ("reward.parts.0.weight=much", "'much' is not a number"),
        ("reward.parts.1={name: exact}", "set its keys (reward.parts.1.name=...), or the whole list"),
        ("reward.parts.0.wieght=1", "no such key; did you mean reward.parts.0.weight?"),
        ("reward.parts.3.weight=1", "there is no such item: reward.parts has 3 items"),
        ("reward.parts.0.name=maths", "'maths' is not built in; did you mean math?"),
        ("+reward.parts.1.args.box=true", "format takes no such argument; did you mean boxed?"),
        (
            "reward.parts.1.args.boxed=1",
            "reward.parts.1.args.boxed [override reward.parts.1.args.boxed=1]: is 1;",
        ),
        ("+reward.parts.0.args.digits=0", "is 0; expected an integer of 1 or more"),
        ("+reward.parts.2.args.penalt=1", "mine.py:short takes no such argument; did you mean penalty?"),
        ("reward.parts=[{name: regex}]", "reward.parts.0.args.pattern"),
        ("reward.parts=[{name: regex, args: {pattern: '('}}]", "expected a regular expression (missing )"),
        ("reward.parts=[{name: exact, args: {take: box}}]", "is 'box'; expected one of whole, final, boxed, tag,"),
        ("reward.parts=[{name: random, args: {probability: 2}}]", "is 2; expected a number from 0 to 1"),
        ("reward.parts=[{weight: 1}]", "reward.parts.0.name"),
        (
            "reward.parts=[{name: model, args: {path: a}}, {name: model, args: {path: b}, label: b}]",
            "a run serves one reward model",
        ),
    ],
)
def test_a_wrong_part_is_refused_by_its_key(refused, tmp_path, override, message):
    (text,) = refused(override)
    assert message.format(file=tmp_path / "f.yaml").replace(f"{tmp_path}/", "") in text.replace(f"{tmp_path}/", "")


def test_the_reward_of_a_task_needs_a_task(loaded, refused):
    of_task = "reward.parts=[{name: task}, {name: exact}]"
    assert loaded(of_task).config.reward.parts[0].name == "task"
    rows = ("task.name=null", "train_dataset.path=rows.jsonl")
    (text,) = refused(of_task, *rows)
    assert text.startswith("reward.parts.0.name [") and "task.name is null" in text


def test_problems_of_several_parts_are_reported_at_once(refused):
    text = FILE.replace("name: math", "name: maths").replace("boxed", "box").replace("label: mine", "label: format")
    assert [problem.partition(" [")[0] for problem in refused(text=text)] == [
        "reward.parts.0.name",
        "reward.parts.1.args.box",
        "reward.parts.2.label",
    ]


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (("reward.parts.0.name=code",), []),
        (("reward.parts.0.name=code", "reward.timeout_s=10"), ["reward.parts.0.args.timeout_s", "10 s for the tests"]),
        (("reward.parts.0.name=code", "+reward.parts.0.args.timeout_s=15"), ["reward.parts.0.args.timeout_s", "15 s"]),
        (
            ("reward.parts.0.name=code", "+reward.parts.0.args.timeout_s=0"),
            ["reward.parts.0.args.timeout_s", "above 0"],
        ),
        (
            ("reward.parts.0.name=code", "+reward.parts.0.args.max_tests=0"),
            ["reward.parts.0.args.max_tests", "1 or more"],
        ),
        (("reward.sandbox=docker",), ["reward.sandbox", "bubblewrap", "rlimits"]),
    ],
)
def test_programs_of_answers_end_before_the_reward_does(overrides, problems, loaded, refused):
    if not problems:
        assert loaded(*overrides).config.reward.sandbox == "bubblewrap"
        other = loaded(*overrides, "reward.sandbox=rlimits").config.reward
        assert reward_spec(other, None, {}, Path(), Path()).sandbox == "rlimits"
    else:
        (text,) = refused(*overrides)
        assert [part for part in problems if part not in text] == []
