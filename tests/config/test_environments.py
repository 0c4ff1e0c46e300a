"""`environments`: what stands for a task, names, and what is refused before a start."""

from pathlib import Path
from typing import Any

import pytest

from areal_like.config.benchmarks import every_reward
from areal_like.config.environments import environment_task, frequencies, names_of
from areal_like.config.load import load
from areal_like.config.problems import ConfigError

BASE = "defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]\n"
BASE += "experiment_name: e\ntotal_train_steps: 1\n"


ITEMS = "{id: addition}, {path: rows.jsonl, reward: {name: exact}}"


def read(tmp_path: Path, items: str, *overrides: str, more: str = "") -> Any:
    file = tmp_path / "x.yaml"
    file.write_text(f"{BASE}environments:\n  train: [{items}]\n{more}")
    return load(file, list(overrides)).config


def test_ids_name_tasks_and_names_follow_from_them(tmp_path: Path) -> None:
    items = '{id: "reasoning_gym:chain_sum", args: {num_rows: 50}}, {id: addition}, {path: data/train.jsonl}'
    trained = read(tmp_path, items, "reward.name=exact").environments.train
    assert [environment_task(each) for each in trained] == [
        ("reasoning_gym", {"dataset": "chain_sum", "num_rows": 50}),
        ("addition", {}),
        None,
    ]
    assert names_of(trained) == ["chain_sum", "addition", "train"]


def test_text_environments_of_packages_are_named_by_their_family(tmp_path: Path) -> None:
    items = '{id: "gymnasium:FrozenLake-v1", args: {render_mode: ansi, num_rows: 50}}, {id: "textarena:Wordle-v0"}'
    trained = read(tmp_path, items).environments.train
    tasks = [environment_task(each) for each in trained]
    assert [task and task.args for task in tasks] == [
        {"name": "gymnasium:FrozenLake-v1", "args": {"render_mode": "ansi"}, "num_rows": 50},
        {"name": "textarena:Wordle-v0", "args": {}},
    ]
    assert names_of(trained) == ["FrozenLake-v1", "Wordle-v0"]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("def reset(self): ...", "is called as reset(seed=17); write `def reset(self, seed)`"),
        ("def reset(self, *, seed=None, options=None): ...", "has no method step; write `def step(self, action)`"),
        ("def step(self, action): ...", "has no method reset; write `def reset(self, seed)`"),
        ("def reset(self, seed): ...\n    def step(self): ...", "write `def step(self, action)`"),
    ],
)
def test_a_text_environment_that_cannot_be_played_is_refused(tmp_path: Path, methods: str, message: str) -> None:
    (tmp_path / "game.py").write_text(f"class Game:\n    {methods}\n")
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, '{id: "game.py:Game"}')
    assert {each.key for each in refused.value.problems} == {"environments.train.0.id"}
    assert any(message in each.message for each in refused.value.problems)


@pytest.mark.parametrize(
    ("items", "mix", "expected"),
    [
        ("{id: addition}, {id: counting}", "{}", None),
        ("{id: addition, ratio: 3}, {id: counting}", "{}", [3, 1]),
        ("{id: addition}, {id: counting}", "{probabilities: [2, 1]}", [2, 1]),
    ],
)
def test_frequencies_are_those_of_the_mix_or_the_ratio_of_each(tmp_path: Path, items: str, mix: str, expected) -> None:
    environments = read(tmp_path, items, f"environments.mix={mix}").environments
    assert frequencies(environments.mix, environments.train) == expected


def test_a_known_dataset_brings_its_columns_and_its_reward(tmp_path: Path) -> None:
    (trained,) = read(tmp_path, "{path: openai/gsm8k}").environments.train
    assert (trained.reward.name, trained.fields, trained.answer_from) == ("math", {"prompt": "question"}, "hashes")


def test_a_reward_of_its_own_has_the_limits_of_the_experiment_unless_it_sets_them(tmp_path: Path) -> None:
    config = read(tmp_path, "{id: addition}, {id: counting, reward: {name: exact, timeout_s: 3}}", "reward.timeout_s=9")
    found = {place: (reward.name, reward.timeout_s) for place, reward in every_reward(config)}
    assert found == {"": (None, 9), "environments.train.0.": (None, 9), "environments.train.1.": ("exact", 3)}


INVALID = [
    ("{id: adition}", ".0.id", "did you mean addition?"),
    ("{id: nowhere}", ".0.id", "a dataset is named in path"),
    ("{id: addition, args: {digitz: 1}}", ".0.args.digitz", "takes no such argument"),
    ("{id: addition, args: {digits: 7}}", ".0.args.digits", "is 7; expected one of 1, 2, 3"),
    ("{id: addition, reward: {name: regex}}", ".0.reward.args.pattern", "+environments.train.0.reward.args.pattern="),
    ("{id: 'reasoning_gym:chain_sum', args: {rows: 3}}", ".0.args.rows", "takes no such argument"),
    ("{name: a}", ".0.id", "names no rows"),
    ("{id: addition, path: x.jsonl}", ".0.id", "keep one"),
    ("{path: x.jsonl, args: {a: 1}}", ".0.args", "leave them out"),
    ("{id: addition}, {id: addition}", ".1.name", "is the name of environments.train.0"),
    ("{id: addition, name: 'a b'}", ".0.name", "a name of at most 64"),
    ("{id: addition, reward: {name: adition}}", ".0.reward.name", "did you mean addition?"),
    ("{id: addition, workflow: {name: multy_turn}}", ".0.workflow.name", "did you mean multi_turn?"),
    ("{id: addition, max_new_tokens: 9999999}", ".0.max_new_tokens", "above gconfig.max_new_tokens"),
    ("{id: addition, prompt_template: '{'}", ".0.prompt_template", "is not a template"),
    ("{id: addition, reward: {name: model, args: {path: x}}}", ".0.reward.name", "set it there"),
]


@pytest.mark.parametrize(("items", "key", "message"), INVALID)
def test_an_invalid_environment_is_refused_with_its_place(tmp_path: Path, items: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, items)
    found = {problem.key: problem.message for problem in refused.value.problems}
    assert message in found[f"environments.train{key}"], found


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["environments.mix.probabilities=[1]"], "environments.mix.probabilities", "has 1 entries for 2"),
        (["environments.mix.probabilities=[0,0]"], "environments.mix.probabilities", "a sum above 0"),
        (["environments.mix.probabilities=[1,0]"], "environments.mix.probabilities", "never be exhausted"),
        (
            ["environments.mix.probabilities=[1,1]", "environments.train.1.ratio=2"],
            "environments.train.1.ratio",
            "keep one",
        ),
        (
            ["environments.mix.probabilities=[1,1]", "environments.mix.strategy=concatenate"],
            "environments.mix.probabilities",
            "is for interleaving",
        ),
        (["task.name=addition"], "task.name", "training rows come from environments.train"),
        (["train_dataset.path=x.jsonl"], "train_dataset.path", "training rows come from environments.train"),
    ],
)
def test_keys_that_contradict_the_environments_are_refused(tmp_path: Path, overrides, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, "{id: addition}, {id: counting}", *overrides)
    assert message in {problem.key: problem.message for problem in refused.value.problems}[key]


def test_held_out_rows_of_an_environment_with_a_path_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"valid_dataset\.path.*environments\.train\.1 has none"):
        read(tmp_path, "{id: addition}, {path: x.jsonl}", more="valid_dataset: {drop_last: false}\n")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("environments.train.1.reward=null", "reward.name"),
        ("environments.train.1.workflow=multi_turn", "workflow.name"),
        ("environments.train.1.reward={args: {digits: 1}}", "reward.args"),
    ],
)
def test_a_section_of_an_item_is_set_by_its_keys(tmp_path: Path, override: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, ITEMS, override)
    (problem,) = refused.value.problems
    assert problem.key == override.partition("=")[0]
    assert problem.message == f"is a section; set keys below it: environments.train.1.{key}=..."


def test_a_whole_item_is_set_by_its_keys_or_with_its_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, ITEMS, "environments.train.0={id: reversing}")
    (problem,) = refused.value.problems
    assert problem.key == "environments.train.0"
    assert problem.message == ("is an item of a list; set its keys (environments.train.0.id=...), or the whole list")
    assert read(tmp_path, ITEMS, "environments.train.0.id=reversing").environments.train[0].id == "reversing"


def test_a_task_of_a_group_is_left_out_with_its_group(tmp_path: Path) -> None:
    trained = "environments.train=[{id: addition}]"
    with pytest.raises(ConfigError) as refused:
        load("grpo.yaml", [trained, "task.name=null"])
    (problem,) = refused.value.problems
    assert problem.key == "task.name" and problem.where == "override task.name=null"
    assert problem.message.endswith("; task=null leaves out the task, with all that its group sets")
    assert {each.key for each in problem.follows} == {"valid_dataset.path"}
    assert load("grpo.yaml", [trained, "task=null"]).config.environments.train[0].id == "addition"
