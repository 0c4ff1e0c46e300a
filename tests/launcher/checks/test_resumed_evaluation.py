"""An evaluation that goes on is refused with another model, engine, sampling, task, reward or dataset."""

import json
from pathlib import Path

import pytest
import yaml

from areal_like.config.load import load
from launcher.checks.resumed_evaluation import other_evaluation_problems
from launcher.plan.plan import RunDirectory
from tests.support.planning import ROOT

FILE = """
defaults: [grpo, _self_]
total_train_steps: 0
task: {name: countdown, args: {num_numbers: 3}}
reward: {name: code}
evaluator:
  benchmarks:
  - {name: sums, path: addition, reward: {name: code}}
"""
ENVIRONMENTS = """
defaults: [grpo, _self_]
total_train_steps: 0
task: {name: null}
reward: {name: null}
train_dataset: {path: ""}
valid_dataset: {path: ""}
environments:
  train:
  - {id: addition, name: sums}
  - {id: reversing, name: words, reward: {name: exact}, max_new_tokens: 4}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def differing(folder: Path, text: str, *changes: str, before: tuple[str, ...] = ()) -> list[str]:
    """The keys for which an evaluation of this file does not go on with these changes."""
    (folder / "e.yaml").write_text(text)
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(load("e.yaml", before).values))
    directory = RunDirectory(str(folder / "run"), "run", "continues", "", 0, 2)
    return [each.key for each in other_evaluation_problems(load("e.yaml", [*before, *changes]), {}, directory)]


def test_an_evaluation_does_not_go_on_from_a_broken_line(folder: Path) -> None:
    assert differing(folder, FILE) == []
    facts = {"experiment": "grpo", "run_id": "id", "folder": str(folder), "cwd": str(folder)}
    (folder / "run" / "run.json").write_text(json.dumps(facts))
    answers = folder / "run" / "evaluations" / "step_000000"
    answers.mkdir(parents=True)
    (answers / "sums.partial.jsonl").write_text('{"row": 1, "row_hash": "x", "sample": 0}\nhalf\n{"row": 2, "ro')
    assert differing(folder, FILE) == [f"{folder}/run/evaluations/step_000000/sums.partial.jsonl:2"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("+reward.args.timeout_s=1", "reward.args.timeout_s"),
        ("+task.args.shuffle=true", "task.args.shuffle"),
        ("+workflow.args.batch_size=2", "workflow.args.batch_size"),
        ("+evaluator.benchmarks.0.reward.args.timeout_s=1", "evaluator.benchmarks[sums].reward.args.timeout_s"),
        ("gconfig.temperature=0.3", "gconfig.temperature"),
    ],
)
def test_arguments_count_whatever_their_names_are(folder: Path, change: str, key: str) -> None:
    (folder / "mine.py").write_text(
        "class Task:\n"
        "    def __init__(self, shuffle=False):\n        pass\n\n    def rows(self, split):\n        return []\n\n\n"
        "class Workflow:\n    def __init__(self, batch_size=1):\n        pass\n\n"
        "    async def run(self, episode, row):\n        return None\n"
    )
    own = ("task.name=mine.py:Task", "~task.args.num_numbers", "workflow.name=mine.py:Workflow")
    assert differing(folder, FILE, change, before=own) == [key]


@pytest.mark.parametrize(
    ("backend", "change", "key"),
    [
        ("sglang:d1", "sglang.kv_cache_dtype=fp8_e5m2", "sglang.kv_cache_dtype"),
        ("sglang:d1", "sglang.dtype=float16", "sglang.dtype"),
        ("vllm:d1", "vllm.dtype=float16", "vllm.dtype"),
        ("vllm:d1", "+vllm.extra_args.quantization=fp8", "vllm.extra_args.quantization"),
        ("vllm:d1", "+vllm.extra_args.kv-cache-dtype=fp8", "vllm.extra_args.kv_cache_dtype"),
        ("embedded:d1", "embedded.dtype=bfloat16", "embedded.dtype"),
        ("embedded:d1", "rollout.backend=vllm:d1", "rollout.backend"),
    ],
)
def test_answers_of_another_engine_or_precision_are_not_mixed(folder: Path, backend: str, change: str, key: str):
    assert differing(folder, FILE, change, before=(f"rollout.backend={backend}",)) == [key]


@pytest.mark.parametrize(
    "changes",
    [
        ("rollout.backend=vllm:d4t2",),
        ("sglang.kv_cache_dtype=fp8_e5m2", "embedded.dtype=float16"),
        ("+vllm.extra_args.max_logprobs=5", "vllm.max_num_seqs=8"),
        ("rollout.server_addresses=[localhost:1]",),
    ],
)
def test_sizes_other_engines_and_servers_of_others_may_change(folder: Path, changes: tuple[str, ...]) -> None:
    assert differing(folder, FILE, *changes, before=("rollout.backend=vllm:d1",)) == []


def test_what_changes_no_score_may_change(folder: Path) -> None:
    changes = (
        *("reward.timeout_s=40", "reward.processes=2", "reward.max_failed_share=0.1", "workflow.block_timeout_s=5"),
        *("valid_dataset.batch_size=3", "valid_dataset.shuffle=false", "agent.timeout_s=3", "agent.max_concurrent=2"),
        *("evaluator.benchmarks.0.freq_steps=3", "evaluator.benchmarks.0.reward.timeout_s=30"),
    )
    assert differing(folder, FILE, *changes) == []
    more = "evaluator.benchmarks=[{name: sums, path: addition, reward: {name: code}}, {name: new, path: reversing}]"
    assert differing(folder, FILE, more) == []


def test_the_limit_of_an_agent_counts_where_it_gives_a_reward(folder: Path) -> None:
    assert differing(folder, FILE, "agent.timeout_s=3", before=("agent.failed_reward=0",)) == ["agent.timeout_s"]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (("environments.train.1.max_new_tokens=5",), ["environments.train[words].max_new_tokens"]),
        (("environments.train.0.reward.name=exact",), ["environments.train[sums].reward.name"]),
        (("environments.train.0.name=others",), ["environments.train"]),
        (("environments.train=[{id: addition, name: sums}]",), ["environments.train"]),
        (("environments.train.0.ratio=2", "environments.train.1.reward.timeout_s=3", "environments.timeout_s=3"), []),
        (("environments.mix.strategy=concatenate", "environments.processes=2"), []),
    ],
)
def test_rows_of_environments_keep_their_own_settings(folder: Path, changes: tuple[str, ...], keys: list[str]) -> None:
    assert differing(folder, ENVIRONMENTS, *changes) == keys


def test_environments_do_not_count_where_other_rows_are_held_out(folder: Path) -> None:
    held_out = ("valid_dataset.path=addition", "reward.name=exact")
    assert differing(folder, ENVIRONMENTS, "environments.train.0.reward.name=math", before=held_out) == []


def test_the_shipped_experiment_goes_on_unchanged(folder: Path) -> None:
    text = (ROOT / "experiments" / "grpo.yaml").read_text()
    assert differing(folder, text, "total_train_steps=0") == []
