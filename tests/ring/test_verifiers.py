"""A run trains on, and is evaluated by, environments of the real package verifiers, in processes of their own."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from areal_like.data.tokenizer import TextTokenizer
from tests.ring.start import run
from tests.support.agents import SampledTexts
from tests.support.chat_models import chat_folder
from tests.support.verifiers_environments import PACKAGES, PlayedGroup, by_own_runner, package, require_verifiers

pytestmark = pytest.mark.xdist_group("verifiers")

EXPERIMENT = """
defaults: [{{algorithm: dr_grpo}}, {{actor: tiny}}, {{rollout: embedded}}, {{tracker: none}}, _self_]
experiment_name: verifiers
total_train_steps: 2
environments:
  train:
    - {{id: tests/v0-single, python: {python}, args: {{first: 20}}}}
train_dataset: {{batch_size: 4}}
valid_dataset: {{drop_last: false}}
gconfig: {{n_samples: 2, max_new_tokens: 6, temperature: 0.5}}
evaluator:
  freq_steps: 2
  benchmarks: [{{name: held_out, id: tests/v0-single, python: {python}, args: {{first: 20}}}}]
"""


def test_a_run_trains_and_evaluates_on_an_environment_of_one_turn(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text(EXPERIMENT.format(python=require_verifiers()))
    shutil.copy(PACKAGES / "v0_single.py", tmp_path)
    ended = run(tmp_path, "rollout.num_episode_workers=1", "recover.mode=disabled", config="v.yaml")
    assert ended.code == 0, ended.text
    assert ended.metric("env/v0-single/groups") == [4, 4]
    assert set(ended.metric("reward/part/length")) != {0.0}
    assert len(ended.metric("eval/held_out/score")) == len(ended.metric("eval/env/v0-single")) == 2
    assert ended.metric("eval/score") == ended.metric("eval/env/v0-single")
    assert max(ended.metric("offpolicy/logprob_diff_max")) < 1e-4


TASKSETS = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: tasksets
total_train_steps: 2
environments:
  train:
    - id: tests/v1-sums
      name: once
      python: PYTHON
      args: {first: 20, added: 11, agent: {harness: {id: tests/v1-sums, question: ""}}}
    - id: tests/v1-sums
      name: sure
      python: PYTHON
      args: {first: 30, added: 21}
train_dataset: {batch_size: 4, max_length: 40}
valid_dataset: null
gconfig: {n_samples: 2, max_new_tokens: 6, temperature: 0.5}
actor: {path: model}
rollout: {max_head_offpolicyness: 0, num_episode_workers: 1, dump_to_file: true, setup_timeout: 600}
recover: {mode: disabled}
evaluator:
  freq_steps: 2
  benchmarks:
    - id: tests/v1-sums
      name: others
      python: PYTHON
      args: {first: 40, added: 11, agent: {harness: {id: tests/v1-sums, question: ""}}}
"""
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['content'] }}{% endif %}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
)
"""Prompts as the built-in model knows them."""
FIRSTS: dict[str, dict[str, Any]] = {
    "once": {"first": 20, "added": 11, "agent": {"harness": {"id": "v1_sums", "question": ""}}},
    "sure": {"first": 30, "added": 21},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_trains_and_evaluates_on_tasksets_with_the_rewards_of_their_own_runner(tmp_path: Path) -> None:
    chat_folder(tmp_path / "model", TEMPLATE)
    (tmp_path / "v.yaml").write_text(TASKSETS.replace("PYTHON", require_verifiers(1)))
    shutil.copy(PACKAGES / "v1_sums.py", tmp_path)
    ended = run(tmp_path, config="v.yaml", limit_s=800)
    assert ended.code == 0, ended.text
    assert sum(ended.metric("env/once/groups")) == sum(ended.metric("env/sure/groups")) == 4
    assert max(ended.metric("offpolicy/logprob_diff_max")) < 1e-4
    files = sorted((ended.directory / "rollouts").glob("step_*.jsonl"))
    samples = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    samples = [sample for sample in samples if "messages" in sample]
    turns = {"once": 1, "sure": 2}
    of_kinds = {(environment_of(sample), sample["reward"]): sample for sample in samples}
    assert all(len(answers(sample)) == turns[environment_of(sample)] for sample in samples)
    assert {environment for environment, _ in of_kinds} == set(turns) and ("once", 2.0) in of_kinds

    groups = [
        PlayedGroup(package("v1_sums", **FIRSTS[name]), {"task": {"idx": row_of(sample)}}, answers(sample), 1)
        for (name, _), sample in of_kinds.items()
    ]
    own = asyncio.run(by_runner_of_verifiers(SampledTexts(TextTokenizer(tmp_path / "model")), groups))
    assert [[{"reward": each["reward"], "metrics": each["rewards"]}] for each in of_kinds.values()] == own

    saved = ended.directory / "evaluations" / "step_000002" / "others.jsonl"
    evaluated = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [each["reward"] for each in evaluated] == [
        2.0 * (each["answer"] == f"{40 + each['row'] + 11:03d}") for each in evaluated
    ]
    assert ended.metric("eval/others/score")[-1] == sum(each["reward"] for each in evaluated) / 4


BOTH = """
  train:
    - id: tests/v1-checked
      name: both
      python: PYTHON
      args:
        first: 20
        added: 11
        solver: {harness: {id: tests/v1-checked, question: ""}}
        checker: {harness: {id: tests/v1-checked, question: ""}}
train_dataset:"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_trains_all_agents_that_the_policy_plays(tmp_path: Path) -> None:
    before, after = TASKSETS.partition("evaluator:")[0].split("train_dataset:")
    chat_folder(tmp_path / "model", TEMPLATE)
    experiment = f"{before.partition('  train:')[0].rstrip()}{BOTH}{after}"
    (tmp_path / "v.yaml").write_text(experiment.replace("PYTHON", require_verifiers(1)))
    for name in ("v1_sums.py", "v1_checked.py"):
        shutil.copy(PACKAGES / name, tmp_path)
    ended = run(tmp_path, "total_train_epochs=2", config="v.yaml", limit_s=800)
    assert ended.code == 0, ended.text
    assert ended.metric("rollout/answers") == [8, 8] and ended.metric("rollout/samples") == [16, 16]
    assert max(ended.metric("offpolicy/logprob_diff_max")) < 1e-4
    files = sorted((ended.directory / "rollouts").glob("step_*.jsonl"))
    samples = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [sample["agent"] for sample in samples] == ["solver", "checker"] * 16
    means = [
        sum(sample["reward"] for sample in samples if sample["step"] == step) / 16
        for step in sorted({sample["step"] for sample in samples})
    ]
    assert ended.metric("reward/mean") == pytest.approx(means) and max(means) > 0


async def by_runner_of_verifiers(engine: SampledTexts, groups: list[PlayedGroup]) -> list[list[dict[str, Any]]]:
    try:
        return await by_own_runner(engine, groups)
    finally:
        await engine.gateway.close()


def answers(sample: dict[str, Any]) -> list[str]:
    return [message["content"] for message in sample["messages"] if message["role"] == "assistant"]


def environment_of(sample: dict[str, Any]) -> str:
    return "once" if first_number(sample) < 30 else "sure"


def row_of(sample: dict[str, Any]) -> int:
    return first_number(sample) - int(FIRSTS[environment_of(sample)]["first"])


def first_number(sample: dict[str, Any]) -> int:
    return int(next(each["content"] for each in sample["messages"] if each["role"] == "user").split("+")[0])
