"""`--schema` prints a JSON Schema for editors that agrees with the checks of a file.

Whatever the schema refuses, the loader refuses as well. The schema covers types, choices and names; ranges of
references, contradictions and missing files are checked by the loader alone.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from areal_like.config.describe.help import meaning
from areal_like.config.describe.json_schema import json_schema
from areal_like.config.describe.yaml_text import to_yaml
from areal_like.config.dotted_path import MISSING
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError
from areal_like.config.schema import Schema
from areal_like.config.sources.library import data_folder
from areal_like.config.sources.yaml_file import read_yaml
from launcher.cli import main
from tests.config.areal_files.expected import LEGACY_FILES, PLAIN_FILES, SUBCLASS_FILES

SHIPPED = sorted(data_folder("experiments").glob("*.yaml"))
AREAL = Path(__file__).parent / "areal_files"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["--schema", *words]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert isinstance(schema, dict)
    return schema


@cache
def everything() -> dict[str, Any]:
    """The schema for every kind of experiment at once, as `--schema` prints it."""
    return json_schema([Schema.of(EXPERIMENTS[kind]) for kind in ("ppo", "sft", "reward_model")])


def instance(file: Path) -> Any:
    """A file as an editor sees it (YAML 1.2, which knows `1e-8` for a number)."""
    read = read_yaml(file, file.name)
    assert read.root is not None
    return read.root.plain()


def refusals(content: Any, schema: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft7Validator(schema)
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(content)]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of the schema, by dotted path."""
    for name, node in schema.get("properties", {}).items():
        yield f"{path}{name}", node
        for choice in node.get("anyOf", []):
            yield from nodes(choice, f"{path}{name}.")
            if isinstance(choice.get("items"), dict):
                yield from nodes(choice["items"], f"{path}{name}[].")


def test_it_is_valid_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = printed(capsys)
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert schema == json.loads(json.dumps(everything()))


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_key_and_section_is_in_it_with_its_description_and_default(kind: str) -> None:
    schema = Schema.of(EXPERIMENTS[kind])
    there, together = dict(nodes(json_schema([schema]))), dict(nodes(everything()))
    for path, key in schema.keys.items():
        assert there[path]["description"] == meaning(key) != ""
        assert there[path].get("default", MISSING) == (MISSING if key.constraints.required else key.default)
        assert together[path]["description"]
    for path in schema.sections:
        if path and not path.endswith("[]"):
            assert there[path]["description"] == meaning(schema.sections[path]) != ""


def test_no_description_is_empty() -> None:
    assert [path for path, node in nodes(everything()) if not node.get("description", "").strip()] == []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_experiment_is_valid(file: Path) -> None:
    assert refusals(instance(file), everything()) == []


@pytest.mark.parametrize("name", PLAIN_FILES)
def test_every_plain_file_of_areal_is_valid(name: str) -> None:
    assert refusals(instance(AREAL / f"{name}.yaml"), everything()) == []


@pytest.mark.parametrize("name", SUBCLASS_FILES)
def test_a_file_with_keys_of_the_user_is_valid_by_the_schema_of_the_user(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content = instance(AREAL / f"{name}.yaml")
    assert refusals(content, printed(capsys, SUBCLASS_FILES[name][0])) == []
    assert refusals(content, everything()) != []


@pytest.mark.parametrize("name", LEGACY_FILES)
def test_a_legacy_areal_file_is_refused(name: str) -> None:
    assert refusals(instance(AREAL / f"{name}.yaml"), everything()) != []


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_of_one_experiment_takes_its_file_and_no_section_of_others(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    own = printed(capsys, "--config", str(file))
    assert refusals(instance(file), own) == []
    kind = load(file).experiment
    assert set(own["properties"]) == {"defaults", "hydra"} | {
        name.split(".")[0] for name in (*Schema.of(EXPERIMENTS[kind]).names(), *shorts(kind))
    }


def shorts(kind: str) -> list[str]:
    keys = Schema.of(EXPERIMENTS[kind]).keys
    return [alias for alias, real in ALIASES.items() if real in keys]


def test_a_printed_configuration_is_valid_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "printed.yaml"
    assert main(["--config", "ppo", "--cfg", "+launcher.env.A=1"]) == 0
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert refusals(instance(file), everything()) == []


# Mutated files: two judges, one verdict

BASE: dict[str, Any] = {
    "experiment_name": "mutated",
    "actor": {"path": "m", "optimizer": {"lr": 1e-4}},
    "critic": {"eps_clip": 0.3},
    "gconfig": {"n_samples": 2},
    "train_dataset": {"batch_size": 4},
}
RIGHT: dict[str, Any] = {
    "seed": 3,
    "actor.lr": 1,
    "actor.optimizer": None,
    "actor.target_modules": ["q_proj", "${actor.path}"],
    "actor.reward_norm": {"std_level": None},
    "actor.reward_norm.mean_level": "group",
    "actor.adv_norm": None,
    "ref.dtype": "${critic.dtype}",
    "cluster.n_gpus_per_node": "auto",
    "critic.optimizer": "${actor.optimizer}",
    "critic.eps_clip": "${actor.eps_clip}",
    "defaults": ["_self_"],
    "environments.train": [{"id": "addition", "args": {"digits": 1}}],
    "gconfig.stop": None,
    "gconfig.stop_token_ids": [1, 2],
    "gconfig.top_p": 1,
    "hydra": {"sweeper": {"params": {"seed": "1,2"}}},
    "launcher.env": {"A": "text", "B": 1},
    "rollout.num_episode_workers": 2,
    "stats_logger.wandb.config": {"any": {"thing": [1, None]}},
    "total_train_steps": None,
    "trial_name": 7,
    "valid_dataset": {"path": "p.jsonl"},
    "vllm.extra_args": {"flag": True, "list": [1, 2], "none": None},
}
"""Valid files: a key and its value."""
WRITTEN_NONE: dict[str, Any] = {"total_train_steps": "None", "actor.optimizer": "None", "gconfig.stop": "None"}
"""Null as AReaL's users write it."""
WRONG: dict[str, Any] = {
    # types
    "seed": "three",
    "gconfig.n_samples": 1.5,
    "gconfig.temperature": "hot",
    "actor.use_lora": 1,
    "actor.path": True,
    "actor.eps_clip": [0.2],
    "actor.target_modules": "q_proj",
    "actor.optimizer.beta1": "0.9",
    "actor.fsdp": 3,
    "actor.lr": "fast",
    "actor": ["path"],
    "cluster.n_gpus_per_node": "many",
    "critic.optimizer": 1,
    "environments.train": [{"id": 1.5}],
    "gconfig.stop_token_ids": ["a"],
    "gconfig.stop": "text",
    "launcher.env": ["A=1"],
    "launcher.env.A": [1],
    "rollout.backend": 2.5,
    "sglang.cuda_graph_bs": [1, "two"],
    "stats_logger.wandb.tags": [["a"]],
    "total_train_epochs": None,
    "train_dataset": "path",
    "train_dataset.shuffle": "yes",
    "trial_name": 1.5,
    # choices
    "actor.dtype": "fp16",
    "actor.kl_estimator": "k9",
    "actor.optimizer.type": "adamw",
    "actor.peft_type": None,
    "cluster.type": "k8s",
    "evaluator.gconfig.reasoning_effort": "hard",
    "log.level": 3,
    "stats_logger.swanlab.mode": "clod",
    "train_dataset.type": "RL",
    # names
    "actr": {"path": "m"},
    "actor.learning_rate": 1e-4,
    "actor.optimizer.lrr": 1e-4,
    "critic.reward_norm": {"eps": 1e-5},
    "environments.mix.probs": [1],
    "evaluator.benchmarks": [{"name": "a", "path": "addition", "nmae": "b"}],
    "rollout.max_head_offpolicynes": 1,
    "nothing_like_it": 1,
    "valid_dataset.fake.seqlen": 4,
}
"""Files with a wrong type, choice or name."""
OUT_OF_RANGE: dict[str, Any] = {
    "gconfig.n_samples": 0,
    "gconfig.top_p": 1.5,
    "actor.optimizer.lr": -1.0,
    "actor.c_clip": 1.0,
    "actor.optimizer.beta1": 1.0,
    "rollout.port": 65536,
    "trial_name": "a/b",
    "evaluator.benchmarks": [{"path": "a"}],
}
"""Errors that both detect: ranges, patterns, required keys of list items."""


def mutated(path: str, value: Any) -> dict[str, Any]:
    tree = deepcopy(BASE)
    node = tree
    *above, name = path.split(".")
    for step in above:
        node = node.setdefault(step, {})
    node[name] = value
    if path == "actor.lr":
        del tree["actor"]["optimizer"]
    return tree


def judged(tmp_path: Path, path: str, value: Any) -> tuple[list[str], Loaded | ConfigError]:
    """The errors of JSON Schema for a mutated file, and the result of loading it."""
    file = tmp_path / "mutated.yaml"
    file.write_text(to_yaml(mutated(path, value)), encoding="utf-8")
    try:
        ours: Loaded | ConfigError = load(file)
    except ConfigError as error:
        ours = error
    return refusals(instance(file), everything()), ours


@pytest.mark.parametrize("path", RIGHT)
def test_valid_values_are_accepted_by_schema_and_loader(tmp_path: Path, path: str) -> None:
    theirs, ours = judged(tmp_path, path, RIGHT[path])
    assert isinstance(ours, Loaded), ours
    assert theirs == []


@pytest.mark.parametrize("path", WRITTEN_NONE)
def test_none_is_null_for_schema_and_loader(tmp_path: Path, path: str) -> None:
    theirs, ours = judged(tmp_path, path, WRITTEN_NONE[path])
    assert isinstance(ours, Loaded), ours
    assert theirs == []


@pytest.mark.parametrize("path", WRONG)
def test_a_wrong_type_choice_or_name_is_refused_by_schema_and_loader(tmp_path: Path, path: str) -> None:
    theirs, ours = judged(tmp_path, path, WRONG[path])
    assert isinstance(ours, ConfigError)
    assert any(problem.key.startswith(path.split("[")[0]) for problem in ours.problems), ours
    assert theirs != []


@pytest.mark.parametrize("path", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_schema_and_loader(tmp_path: Path, path: str) -> None:
    theirs, ours = judged(tmp_path, path, OUT_OF_RANGE[path])
    assert isinstance(ours, ConfigError)
    assert theirs != []


def test_only_listed_choices_are_accepted() -> None:
    """For each key with choices: the schema has the same ones."""
    there = dict(nodes(everything()))
    for cls in EXPERIMENTS.values():
        for path, key in Schema.of(cls).keys.items():
            if key.choices is not None:
                enumerated = [choice["enum"] for choice in there[path]["anyOf"] if "enum" in choice]
                enumerated += [
                    choice["items"]["anyOf"][0]["enum"]
                    for choice in there[path]["anyOf"]
                    if choice.get("type") == "array" and "enum" in choice["items"].get("anyOf", [{}])[0]
                ]
                assert enumerated == [list(key.choices)], path


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_default_is_valid(kind: str) -> None:
    """A default that an editor offers must be valid in the schema."""
    schema = Schema.of(EXPERIMENTS[kind])
    there = dict(nodes(everything()))
    for path, key in schema.keys.items():
        if not key.constraints.required:
            assert refusals(key.default, {"anyOf": there[path]["anyOf"]}) == [], path
