"""Config groups: all options combine, and an option on the command line changes only its own keys."""

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.dotted_path import value_at
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Key, Schema
from areal_like.config.sources.library import data_folder
from areal_like.config.sources.yaml_file import read_yaml
from launcher.plan.build import build_plan
from tests.support.planning import load_text
from tests.support.replay import replayed

CONF, SHIPPED = data_folder("conf"), sorted(data_folder("experiments").glob("*.yaml"))
FILES = sorted(CONF.glob("**/*.yaml"))


class Option(NamedTuple):
    """One shipped option: `group` and `name` choose it."""

    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}={self.name}"


OPTIONS = [Option(path.parent.relative_to(CONF).as_posix(), path.stem) for path in FILES]
MOST_COMPOSITIONS = 1.2 * math.prod(sorted(Counter(option.group for option in OPTIONS).values())[-2:])
"""The pairs of the two largest groups alone need as many as there are of them."""


def flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Leaves by dotted path."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{above}{name}"
        found |= flat(value, path + ".") if isinstance(value, dict) and value else {path: value}
    return found


@cache
def option_keys(option: Option) -> dict[str, Any]:
    """What an option sets, by full path, as read from its own YAML and from those that it builds on."""
    file = read_yaml(CONF / option.group / f"{option.name}.yaml", str(option))
    assert file.root is not None and not file.problems
    body = file.root.plain()
    keys: dict[str, Any] = {}
    for below in body.pop("defaults", []):
        if below != "_self_":
            keys |= option_keys(Option(option.group, below))
    package = file.header.get("package", option.group.replace("/", "."))
    return keys | flat(body, "" if package == "_global_" else package + ".")


@cache
def fits(option: Option, kind: str) -> bool:
    """Whether an experiment of this kind has every key that the option sets."""
    if option.group == "experiment":
        return option.name == kind
    schema = Schema.of(EXPERIMENTS[kind])
    known = {*schema.keys, *schema.sections}
    return all(path in known or schema.map_above(path) is not None for path in option_keys(option))


def suitable(option: Option) -> str:
    return next(kind for kind in ("grpo", "ppo", "sft", "reward_model") if fits(option, kind))


def composed(file: Path, *overrides: str) -> Loaded:
    """Composes, as the layers add up; the plan can be made too."""
    loaded = load(file, overrides)
    assert replayed(loaded) == loaded.raw
    build_plan(loaded)
    return loaded


# Everything composes


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_experiment_composes_and_can_be_planned(file: Path) -> None:
    kinds = ("ppo", "sft", "reward_model")
    assert composed(file).experiment == next((kind for kind in kinds if file.stem.endswith(kind)), "grpo")


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_every_key_of_a_shipped_option_exists(option: Option) -> None:
    assert option_keys(option), "sets nothing"
    assert any(fits(option, kind) for kind in EXPERIMENTS)


Row = dict[str, str]
Pair = frozenset[Option]


def compatible_pairs() -> set[Pair]:
    """Every two options of different groups that some kind of experiment can have together."""
    return {
        frozenset((left, right))
        for left, right in combinations(OPTIONS, 2)
        if left.group != right.group and any(fits(left, kind) and fits(right, kind) for kind in EXPERIMENTS)
    }


def pairs_of(row: Row) -> set[Pair]:
    return {frozenset(pair) for pair in combinations([Option(*item) for item in row.items()], 2)}


def covering_rows() -> Iterator[Row]:
    """Few compositions that together hold all pairs: each row begins with a pair that is still lacking, and takes of
    every further group the option that brings in most of what is lacking."""
    groups = list(dict.fromkeys(option.group for option in OPTIONS))
    lacking = compatible_pairs()
    while lacking:
        first = min(lacking, key=lambda pair: sorted(map(str, pair)))
        kind = max(EXPERIMENTS, key=lambda kind: _gain({"experiment": kind}, first, lacking))
        row = {"experiment": kind, **dict(sorted(first))}
        for group in groups:
            choices = [option for option in OPTIONS if option.group == group and fits(option, kind)]
            if group not in row and choices:
                best = max(choices, key=lambda option: len(pairs_of({**row, group: option.name}) & lacking))
                row[group] = best.name
        lacking -= pairs_of(row)
        yield row


def _gain(row: Row, first: Pair, lacking: set[Pair]) -> int:
    """How much of what is lacking a kind of experiment that fits the first pair could have."""
    kind = row["experiment"]
    if not all(fits(option, kind) for option in first):
        return -1
    return sum(all(fits(option, kind) for option in pair) for pair in lacking)


ROWS = list(covering_rows())


def test_the_tested_compositions_cover_every_pair_of_options() -> None:
    held = set().union(*(pairs_of(row) for row in ROWS))
    assert held >= compatible_pairs()
    assert {option for pair in held for option in pair} == set(OPTIONS)
    assert len(ROWS) <= MOST_COMPOSITIONS


def on_the_command_line(row: Row) -> list[str]:
    return [f"{group}={name}" for group, name in row.items()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_every_two_options_compose_and_both_take_effect(tmp_path: Path, row: Row) -> None:
    file = tmp_path / "pairs.yaml"
    file.write_text("experiment_name: pairs\n")
    loaded = composed(file, *on_the_command_line(row))
    assert loaded.experiment == row["experiment"]
    for option in row.items():
        wanted = option_keys(Option(*option))
        assert {path: loaded.get_raw(path, "absent") for path in wanted} == wanted


@pytest.mark.parametrize("row", ROWS[::6], ids=lambda row: "-".join(row.values()))
def test_options_mean_the_same_in_the_defaults_of_a_file_and_on_the_command_line(tmp_path: Path, row: Row) -> None:
    online, infile = tmp_path / "online.yaml", tmp_path / "infile.yaml"
    online.write_text("experiment_name: pairs\n")
    infile.write_text(to_yaml({"defaults": [{group: name} for group, name in row.items()], "experiment_name": "pairs"}))
    assert load(infile).values == load(online, on_the_command_line(row)).values


def test_no_two_groups_set_the_same_key() -> None:
    for left, right in combinations(OPTIONS, 2):
        if left.group != right.group:
            assert not option_keys(left).keys() & option_keys(right).keys(), f"{left} and {right}"


@pytest.mark.parametrize(
    ("experiment", "choice", "section"),
    [
        ("grpo", "critic=same_as_actor", "critic"),
        ("sft", "algorithm=dapo", "actor"),
        ("sft", "rollout=vllm", "rollout"),
    ],
)
def test_an_option_for_another_kind_of_experiment_is_refused(experiment: str, choice: str, section: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(experiment, [choice])
    assert all(problem.key.split(".")[0] == section for problem in raised.value.problems)
    assert all(f"conf/{choice.replace('=', '/')}.yaml" in problem.where for problem in raised.value.problems)


@pytest.mark.parametrize(("choice", "kind"), [("algorithm=dapo", "grpo"), ("rollout=vllm", "grpo")])
def test_a_section_of_another_kind_of_experiment_is_not_a_users_section(choice: str, kind: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load("sft", [choice])
    (problem,) = raised.value.problems
    assert "--schema" not in problem.message
    assert kind in problem.message


@pytest.mark.parametrize(
    ("experiment", "override", "message"),
    [
        ("sft", "actor.lr=1e-4", "an SFT experiment has no actor; did you mean model.lr?"),
        ("grpo", "model.lr=1e-4", "a GRPO experiment has no model; did you mean actor.lr?"),
        ("grpo", "critic.lr=1", "a GRPO experiment has no critic (experiment=ppo has)"),
    ],
)
def test_a_section_of_another_experiment_is_answered_with_the_section_here(
    experiment: str, override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(experiment, [override])
    assert refused.value.problems[0].message == message


def test_a_group_for_another_experiment_is_refused_by_the_override_that_chose_it() -> None:
    with pytest.raises(ConfigError) as refused:
        load("sft", ["algorithm=rloo"])
    (problem,) = refused.value.problems
    assert problem.where.startswith("override algorithm=rloo, conf/algorithm/rloo.yaml:")
    assert problem.message.endswith("(experiment=grpo or ppo has); leave algorithm=rloo out")


def test_an_option_written_as_the_value_of_a_group_is_answered_with_the_defaults_list() -> None:
    with pytest.raises(ConfigError) as refused:
        load_text("experiment_name: x\nactor: tiny\nalgorithm: rloo\ntrain_dataset: {type: rl}\n")
    for problem, option in zip(refused.value.problems, ("actor: tiny", "algorithm: rloo"), strict=True):
        assert problem.message.endswith(f"write `- {option}` under `defaults:`")


# A choice is a choice and nothing more

FACTS: dict[str, Any] = {
    "experiment_name": "filled",
    "trial_name": "trial-7",
    "fileroot": "/filled",
    "temperature": 0.77,
    "consumer_batch_size": 24,
    "group_size": 6,
    "weight_update_mode": "collective",
    "eps_clip": 0.25,
    "eps_clip_higher": 0.35,
    "mask_low": 0.1,
    "mask_high": 9.0,
    "behav_imp_weight_floor": 0.01,
    "overlong_tokens": 5,
    "max_new_tokens": 50,
    "warmup_steps": 3,
    "decay_steps": 4,
    "server_type": "vllm",
    "etcd3_addr": "other:2379",
}
"""Values of keys that must agree with others, by the last part of their names."""
HEADS: dict[str, Any] = {
    **dict.fromkeys(("actor.is_critic", "ref.is_critic", "critic.mask_no_eos_with_zero"), False),
    "critic.is_critic": True,
}
"""Keys with a single possible value."""
NAMED: dict[str, Any] = {
    **HEADS,
    **dict.fromkeys(("actor.loss", "ref.loss", "reward.name"), "mine.py:thing"),
    **dict.fromkeys(("task.name", "workflow.name"), "mine.py:Thing"),
    "task.args": {},
    "workflow.args": {},
    "reward.args": {},
    "actor.loss_args": {},
    "ref.loss_args": {},
    **{
        f"{section}.{name}": value
        for section in ("train_dataset", "valid_dataset")
        for name, value in {
            "fields": {"prompt": "question"},
            "require": {"level": "easy"},
            "known": "none",
            "prompt_template": "{question}!",
            "answer_from": "letter",
        }.items()
    },
    **dict.fromkeys(("actor.backend", "ref.backend", "critic.backend", "model.backend"), "fsdp"),
}
"""Names of code, and the arguments that both this code and what an option names instead of it take; of fields that rows
of every type have; and of engines."""
MINE = """
def thing(*given, digits=1): ...

class Thing:
    def __init__(self, digits=1): ...
    def rows(self, split): ...
    async def run(self, episode, row): ...
"""
AGREEING: dict[str, Any] = {
    "experiment_name": "filled",
    "trial_name": "trial-7",
    "cluster": {"fileroot": "/filled"},
    "gconfig": {"temperature": 0.77, "n_samples": 6, "max_new_tokens": 50},
    "train_dataset": {"batch_size": 24},
}
"""What a filled section needs to agree with."""


def other_value(key: Key, avoid: Any) -> Any:
    """A value that the key takes and that is neither its default nor, where there is another, `avoid`."""
    if key.path in NAMED:
        return NAMED[key.path]
    if key.name in FACTS:
        return FACTS[key.name]
    choices = ("vllm", "sglang") if key.path == "rollout.backend" else key.choices
    if choices is not None:
        others = [choice for choice in choices if choice not in (key.default, avoid)]
        return next(iter(others), next((c for c in choices if c != key.default), choices[0]))
    low = key.constraints.ge if key.constraints.ge is not None else key.constraints.gt
    high = key.constraints.le if key.constraints.le is not None else key.constraints.lt
    if key.kind.name == "bool":
        return not key.default if isinstance(key.default, bool) else True
    if key.kind.name == "int":
        return next(n for n in range(int(low or 0) + 1, 100) if n not in (key.default, avoid))
    if key.kind.name == "float":
        step = ((high if high is not None else (low or 0) + 1) - (low or 0)) / 8
        return next(x for x in ((low or 0) + step * n for n in (1, 2, 3)) if x not in (key.default, avoid))
    if key.kind.name == "list":
        items = {"int": [3, 4], "float": [0.5, 0.25]}
        return items.get(key.kind.item.name if key.kind.item else "", [f"one-{key.name}"])
    return {"filled": "yes-it-is"} if key.kind.name == "map" else f"my-{key.name}"


def filled(option: Option) -> tuple[dict[str, Any], set[str]]:
    """A file's body that says every key of every section that the option touches, and the paths of these."""
    kind = suitable(option)
    schema = Schema.of(EXPERIMENTS[kind])
    touched = {path.split(".")[0] for path in option_keys(option)}
    body = {name: dict(value) if isinstance(value, dict) else value for name, value in AGREEING.items()}
    body = {name: value for name, value in body.items() if name in schema.keys or name in schema.sections}
    if kind in ("sft", "reward_model"):
        body["train_dataset"]["type"] = {"sft": "sft", "reward_model": "rw"}[kind]
        body.setdefault("model", {"path": "some/model"})
    else:
        body.setdefault("critic" if kind == "ppo" else "actor", {"path": "some/model"})
    written = set()
    for path, key in schema.keys.items():
        if path.split(".")[0] in touched and "[]" not in path and not (key.kind.item and key.kind.item.cls):
            put(body, path, other_value(key, option_keys(option).get(path)))
            written.add(path)
    return body, written


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for step in above:
        tree = tree.setdefault(step, {})
    tree[name] = value


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_option_on_the_command_line_changes_only_its_keys_of_a_filled_section(
    tmp_path: Path, option: Option
) -> None:
    body, written = filled(option)
    file = tmp_path / "filled.yaml"
    file.write_text(to_yaml(body))
    (tmp_path / "mine.py").write_text(MINE)
    before, after = load(file), load(file, [str(option)])
    unfilled = {path for path in written if before.origin(path).kind != "file" and before.get(path) != {}}
    assert {path for path in unfilled if before.schema.keys[path].kind.name != "map"} == set()
    old, new = flat(before.raw), flat(after.raw)
    own = option_keys(option)
    changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    changed = {next((above for above in own if path.startswith(f"{above}.")), path) for path in changed}
    assert changed <= own.keys()
    assert {path: new[path] for path in own} == own
    assert changed, "a file that says everything otherwise is not touched by the choice"

    listed = {beaten.key: beaten for beaten in build_plan(after).beaten_body_values}
    was_written = {path for path in changed if path in flat(body)}
    assert listed.keys() == was_written
    for path in was_written:
        assert (listed[path].written, listed[path].value) == (value_at(body, path), own[path])
        assert listed[path].where.startswith(before.origin(path).where.rpartition(":")[0])
        assert listed[path].by == after.origin(path).where
        assert f"conf/{option.group}/" in listed[path].by


def test_a_base_sets_nothing_that_a_users_file_sets() -> None:
    """Files named `base` are there to be built upon; the keys of all files that users wrote are left to these."""
    written: set[str] = set()
    for path in (*SHIPPED, *(Path(__file__).parent / "areal_files").glob("*.yaml")):
        root = read_yaml(path, path.name).root
        assert root is not None
        written |= flat({name: value for name, value in root.plain().items() if name != "defaults"}).keys()
    for option in OPTIONS:
        if option.name == "base" or option.name.startswith("base_"):
            assert not option_keys(option).keys() & written, f"{option} sets what a file sets"


# A user's own groups


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's file with groups beside it: a new group, a group of a shipped name, an option of a shipped name."""
    for name, text in {
        "actor/mine.yaml": "path: my/model\n",
        "actor/tiny.yaml": "path: my/tiny\n",
        "recipe/short.yaml": "# @package _global_\ntotal_train_steps: 7\ngconfig:\n  n_samples: 3\n",
        "rollout/half.yaml": "defaults:\n  - embedded\n  - _self_\nmax_head_offpolicyness: 5\n",
        "stats_logger/wandb/team.yaml": "entity: us\n",
        "mine.yaml": "experiment_name: mine\nactor:\n  dtype: float16\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "mine.yaml"


class TestUserGroups:
    def test_a_user_option_in_the_folder_of_the_file_is_used(self, mine: Path) -> None:
        loaded = load(mine, ["actor=mine"])
        assert loaded.get("actor.path") == "my/model"
        assert loaded.origin("actor.path").where.endswith("actor/mine.yaml:1")
        assert loaded.origin("actor.path").kind == "group of the command line"

    def test_a_user_option_replaces_a_shipped_one_of_the_same_name(self, mine: Path) -> None:
        loaded = load(mine, ["actor=tiny"])
        assert loaded.get("actor.path") == "my/tiny"
        assert loaded.get("actor.dtype") == "float16"

    def test_shipped_options_of_the_group_stay_available(self, mine: Path) -> None:
        assert load(mine, ["actor=qwen3_0_6b"]).get("actor.path") == "Qwen/Qwen3-0.6B"

    def test_the_defaults_list_of_a_file_can_name_a_user_option(self, mine: Path) -> None:
        mine.write_text("defaults:\n  - recipe: short\n  - actor: tiny\n" + mine.read_text())
        loaded = load(mine)
        assert (loaded.get("total_train_steps"), loaded.get("actor.path")) == (7, "my/tiny")
        assert load(mine, ["recipe=null"]).get("total_train_steps") is None

    def test_a_user_group_may_set_keys_in_any_section(self, mine: Path) -> None:
        loaded = load(mine, ["recipe=short"])
        assert (loaded.get("total_train_steps"), loaded.get("actor.group_size")) == (7, 3)

    def test_a_user_option_may_build_on_a_shipped_one(self, mine: Path) -> None:
        loaded = load(mine, ["rollout=half"])
        assert (loaded.get("rollout.backend"), loaded.get("rollout.max_head_offpolicyness")) == ("embedded", 5)

    def test_a_group_may_be_nested(self, mine: Path) -> None:
        assert load(mine, ["stats_logger/wandb=team"]).get("stats_logger.wandb.entity") == "us"

    def test_values_replaced_by_a_user_option_are_listed(self, mine: Path) -> None:
        mine.write_text(mine.read_text() + "  path: written/here\n")
        (beaten,) = build_plan(load(mine, ["actor=mine"])).beaten_body_values
        assert (beaten.key, beaten.written, beaten.value) == ("actor.path", "written/here", "my/model")
        assert beaten.where.endswith("mine.yaml:4")

    def test_an_unknown_option_lists_user_and_shipped_options(self, mine: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"did you mean mine\?.*mine, qwen2_5_1_5b, qwen3_0_6b, smollm2_135m, tiny"
        ):
            load(mine, ["actor=min"])

    def test_an_unknown_key_in_a_user_option_names_its_line(self, mine: Path) -> None:
        (mine.parent / "actor" / "mine.yaml").write_text("path: m\nleraning_rate: 1\n")
        with pytest.raises(ConfigError, match=r"actor\.leraning_rate \[.*actor/mine\.yaml:2\]: no such key"):
            load(mine, ["actor=mine"])

    @pytest.mark.parametrize("way", [["tiny"], ["mine", "tiny"]], ids=["directly", "through another"])
    def test_an_option_that_builds_on_itself_is_one_problem(self, mine: Path, way: list[str]) -> None:
        for name, base in zip(way, [*way[1:], way[0]], strict=True):
            (mine.parent / "actor" / f"{name}.yaml").write_text(f"defaults:\n  - {base}\n  - _self_\npath: m\n")
        with pytest.raises(ConfigError) as raised:
            load(mine, ["actor=tiny"])
        assert len(raised.value.problems) == 1

    def test_the_base_of_an_option_belongs_to_the_choice(self, mine: Path) -> None:
        mine.write_text(mine.read_text() + "rollout:\n  backend: vllm\n")
        loaded = load(mine, ["rollout=half"])
        assert loaded.origin("rollout.backend").kind == "group of the command line"
        assert [beaten.key for beaten in build_plan(loaded).beaten_body_values] == ["rollout.backend"]
