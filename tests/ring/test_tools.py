"""Runs of the workflows with tools, by the real command: tools are called, and code within an answer runs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_like.models import model_folder
from areal_like.rollout.rollout_files import rollout_files
from tests.ring.start import run

pytestmark = pytest.mark.xdist_group("ring-1")

SHORT = ("total_train_steps=2", "train_dataset.batch_size=8", "gconfig.n_samples=4", "evaluator.num_examples=16")


def test_a_tiny_model_asks_the_calculator_of_the_shipped_experiment(tmp_path: Path) -> None:
    ended = run(tmp_path, *SHORT, "rollout.dump_to_file=true", config="tools.yaml")
    assert ended.code == 0, ended.text
    assert len(ended.metric("train/loss")) == 2 and min(ended.metric("rollout/tool_calls_mean")) > 0
    assert max(ended.metric("rollout/turns_max")) == 2 and min(ended.metric("perf/episode_tools_s")) > 0


CODE = "```python\nprint(6*7)\n```\n"
OUTPUT = "```output\n42\n```\n"
EXPERIMENT = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: code-within
total_train_steps: 2
workflow: {name: tool_integrated, args: {max_calls: 1, call_timeout_s: 60}}
reward: {name: numeric, timeout_s: 60}
train_dataset: {path: rows.jsonl, batch_size: 4, max_length: 6}
valid_dataset: null
gconfig: {n_samples: 2, max_new_tokens: 50, max_tokens: 60, temperature: 0.5}
actor: {path: model}
"""


def coding_model(folder: Path) -> None:
    """A tiny model that has learnt one answer by heart: a program, and its output."""
    shutil.copytree(model_folder("builtin:tiny-programs"), folder)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    answer = tokenizer(CODE + OUTPUT + "42")["input_ids"] + [tokenizer.eos_token_id]
    texts = torch.tensor([tokenizer(f"{number}:")["input_ids"] + answer for number in range(10, 18)])
    labels = texts.clone()
    labels[:, :3] = -100
    for _ in range(150):
        loss = model(texts, labels=labels).loss
        if loss < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def test_code_within_an_answer_runs_and_its_output_is_not_trained_on(tmp_path: Path) -> None:
    coding_model(tmp_path / "model")
    rows = [{"prompt": f"{number}:", "answer": "42"} for number in range(10, 18)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "code.yaml").write_text(EXPERIMENT)
    ended = run(tmp_path, "rollout.dump_to_file=true", config="code.yaml")
    assert ended.code == 0, ended.text
    assert min(ended.metric("rollout/tool_calls_mean")) > 0.5 > max(ended.metric("rollout/tool_errors_mean"))
    answers = [
        json.loads(line)
        for file in rollout_files(ended.directory / "rollouts").values()
        for line in file.read_text().splitlines()
    ]
    assert len(answers) == 16
    ran = [each for each in answers if f"{CODE}{OUTPUT}42" in each["answer"]]
    assert len(ran) > 8
    for each in ran:
        before, after = each["generated"]
        assert before == [3, 3 + len(CODE)] and after == [before[1] + len(OUTPUT), len(each["token_ids"])]
