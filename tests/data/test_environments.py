"""The training rows of several environments are mixed as `environments.mix` says, and know where they come from."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.data.datasets import Datasets, load_datasets
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder

BASE = "defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]\n"
BASE += "experiment_name: e\ntotal_train_steps: 1\ntrain_dataset: {batch_size: 1}\nreward: {name: exact}\n"


def rows_of(tmp_path: Path, items: str, *overrides: str, more: str = "") -> Datasets:
    """Files a.jsonl and b.jsonl have three rows and one row."""
    for name, count in (("a", 3), ("b", 1)):
        lines = [json.dumps({"prompt": f"{name}{number}", "answer": "1"}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "x.yaml").write_text(f"{BASE}environments:\n  train: [{items}]\n{more}")
    config: Any = load(tmp_path / "x.yaml", list(overrides)).config
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition", tmp_path), {})
    return load_datasets(config, SearchFolders(tmp_path, tmp_path), tokenizer)


LOADS = f"""#!{sys.executable}
import socket, sys
wire = socket.socket(fileno=int(sys.argv[2]))
while wire.recv(1 << 16):
    pass
"""


def test_an_environment_of_verifiers_is_loaded_within_the_key_that_the_error_names(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(LOADS)
    (tmp_path / "python").chmod(0o755)
    late = r"took longer than 0\.2 s to be loaded \(rollout\.setup_timeout: raise it\)"
    with pytest.raises(ConfigError, match=late):
        rows_of(tmp_path, "{id: owner/maze, python: python}", "rollout.setup_timeout=0.2")


def prompts(rows: Any) -> list[str]:
    return [row["prompt"] for row in rows.rows]


TWO = "{path: a.jsonl}, {path: b.jsonl}"
MIX = "environments.mix"


@pytest.mark.shows("environments.mix.strategy", "environments.mix.stopping_strategy")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ["a0", "b0", "a1", "b0", "a2", "b0"]),
        ([f"{MIX}.stopping_strategy=first_exhausted"], ["a0", "b0"]),
        ([f"{MIX}.strategy=concatenate"], ["a0", "a1", "a2", "b0"]),
    ],
)
def test_rows_are_mixed_by_the_strategy(tmp_path: Path, overrides: list[str], expected: list[str]) -> None:
    assert prompts(rows_of(tmp_path, TWO, *overrides).train) == expected


@pytest.mark.shows("environments.mix.probabilities", "environments.mix.seed", "environments.train[].ratio")
def test_with_probabilities_the_seed_draws_the_environment_of_each_row(tmp_path: Path) -> None:
    def mix(*overrides: str) -> list[str]:
        return prompts(rows_of(tmp_path, TWO, *overrides).train)

    rarely_b, other_seed = f"{MIX}.probabilities=[9,1]", f"{MIX}.seed=5"
    first = mix(rarely_b)
    assert first == mix(rarely_b) == mix("environments.train.0.ratio=9") != mix(rarely_b, other_seed)
    assert mix(rarely_b, other_seed) == mix(rarely_b, other_seed, "seed=3") and first != mix(rarely_b, "seed=3")
    assert first.index("b0") >= 3 and [each for each in first if each != "b0"][:4] == ["a0", "a1", "a2", "a0"]


def test_where_the_environment_of_each_row_is_drawn_later_all_rows_come_once(tmp_path: Path) -> None:
    drawn = "curriculum.type=by_environment"
    train = rows_of(tmp_path, TWO, drawn, "environments.train.0.ratio=9").train
    assert prompts(train) == ["a0", "a1", "a2", "b0"]
    with pytest.raises(ConfigError, match="has a 0: that environment would never be drawn"):
        rows_of(tmp_path, TWO, drawn, f"{MIX}.probabilities=[1,0]", f"{MIX}.stopping_strategy=first_exhausted")


@pytest.mark.shows("environments.train[].id", "environments.train[].args", "environments.train[].name")
def test_a_row_knows_its_environment_and_is_read_as_one_of_it(tmp_path: Path) -> None:
    datasets = rows_of(tmp_path, "{path: b.jsonl}, {id: addition, args: {digits: 1}, name: sums}")
    train = datasets.train
    assert [train.environment(number) for number in range(4)] == ["b", "sums", "b", "sums"]
    assert [len(prompt) for prompt in prompts(train)[:4]] == [2, 4, 2, 4]
    inspected = train.inspect([2, 3])
    assert [row.row for row in inspected] == [2, 3]
    assert train.row(3, inspected[1].hash)["answer"] == train.rows[3]["answer"]
    assert train.place(2) == f"{tmp_path}/b.jsonl:1"


def test_held_out_rows_are_those_of_all_tasks_one_after_the_other(tmp_path: Path) -> None:
    items = "{id: addition, name: small, args: {digits: 1}}, {id: addition, name: large}"
    valid = rows_of(tmp_path, items, more="valid_dataset: {drop_last: false}\n").valid
    assert valid is not None
    names = [valid.environment(number) for number in range(len(valid))]
    assert names == sorted(names, reverse=True) and set(names) == {"small", "large"}
    assert len(set(prompts(valid))) == len(valid)


def test_a_row_that_is_too_long_is_so_by_the_limit_of_its_environment(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"prompt": "1", "answer": "1"}\n{"prompt": "1+1=", "answer": "2"}')
    items = "{path: c.jsonl, max_length: 3}, {path: c.jsonl, name: d}"
    train = rows_of(tmp_path, items, "train_dataset.max_length=50").train
    assert [row.is_too_long for row in train.inspect([0, 1, 2, 3])] == [False, False, True, False]


def test_an_error_of_a_task_begins_with_its_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environments\.train\.1\.id: sorting could not be created: .*min_length"):
        rows_of(tmp_path, "{path: a.jsonl}, {id: sorting, args: {min_length: 99}}")


def test_a_single_environment_is_not_mixed(tmp_path: Path) -> None:
    train = rows_of(tmp_path, "{path: a.jsonl}").train
    assert prompts(train) == ["a0", "a1", "a2"] and train.environment(2) == "a"


@pytest.mark.shows("evaluator.benchmarks[].id", "evaluator.benchmarks[].args", "evaluator.benchmarks[].name")
def test_a_benchmark_may_name_its_task_by_an_id(tmp_path: Path) -> None:
    benchmark = "evaluator.benchmarks=[{name: sums, id: addition, args: {digits: 1}}]"
    rows = rows_of(tmp_path, "{path: a.jsonl}", benchmark).of("benchmark/sums")
    assert len(rows.rows[0]["prompt"]) == 4
