"""Conversations and agents over external engines: the ids trained on are those that the engine sampled."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import Ended, run
from tests.support.areal_examples import write_chat_model
from tests.support.engine_environments import require_engine

STEPS = 2
AGENT = """
import json, os, sys, uuid
from pathlib import Path
from openai import OpenAI

row, calls = json.loads(sys.stdin.readline()), []
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
with OpenAI(max_retries=0) as policy:
    def ask(messages, **more):
        given = dict(model="any", messages=messages, tools=[ADD], extra_body={"return_token_ids": True}, **more)
        answer = policy.chat.completions.create(**given)
        calls.append([answer.prompt_token_ids, answer.choices[0].token_ids])
        return answer.choices[0].message
    question = {"role": "user", "content": row["prompt"]}
    first = ask([question])
    ask([question, first, {"role": "tool", "tool_call_id": "c", "content": row["answer"][-2:]}])
Path("calls").mkdir(exist_ok=True)
Path("calls", uuid.uuid4().hex).write_text(json.dumps(calls))
"""
EXPERIMENT = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: ENGINE}, {tracker: none}, _self_]
experiment_name: turns
environments:
  train:
    - {id: addition, name: tries, workflow: {name: multi_turn, args: {feedback: " no, {prompt}", max_turns: 3}}}
    - {id: addition, name: program, workflow: {name: agent}}
agent: {command: [python, agent.py]}
train_dataset: {batch_size: 4, max_length: 10, shuffle: false}
valid_dataset: null
gconfig: {n_samples: 2, max_new_tokens: 6, temperature: 1.0}
rollout: {max_head_offpolicyness: 0, setup_timeout: 300, dump_to_file: true}
recover: {mode: disabled}
reward: {name: random}
"""


def trained(engine: str, root: Path, *words: str) -> Ended:
    write_chat_model(root / "model", hidden_size=128)  # vLLM has no kernels for heads of less than 32
    (root / "agent.py").write_text(AGENT)
    (root / "turns.yaml").write_text(EXPERIMENT.replace("ENGINE", engine))
    own = [] if engine == "embedded" else [f"{engine}.python={require_engine(engine)}"]
    ours = ("actor.path=model", "actor.dtype=float32", f"total_train_steps={STEPS}", *own)
    return run(root, *ours, *words, config="turns.yaml", limit_s=500)


def saved_samples(ended: Ended, environment: str) -> list[dict[str, Any]]:
    """Of all steps, as they were trained on."""
    files = sorted((ended.directory / "rollouts").glob("step_*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line for line in lines if ("<|im_start|>" in line["prompt"]) == (environment == "program")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("embedded", marks=pytest.mark.slow),
        pytest.param("vllm", marks=pytest.mark.xdist_group("vllm")),
        pytest.param("sglang", marks=[pytest.mark.xdist_group("sglang"), pytest.mark.slow]),
    ],
)
def test_turns_and_calls_of_a_program_are_trained_as_the_engine_sampled_them(engine: str, tmp_path: Path) -> None:
    ended = trained(engine, tmp_path)
    assert ended.code == 0, ended.text
    assert audit(ended.ledger(), 0) == []
    apart = ended.metric("offpolicy/logprob_diff_max")
    assert len(apart) == STEPS and max(apart) < 1e-4, "of every token, after the ids that the engine was given"
    assert ended.metric("rollout/turns_max") == [3, 3] and ended.metric("rollout/template_breaks") == [0, 0]
    calls = [call for file in (tmp_path / "calls").iterdir() for call in json.loads(file.read_text())]
    samples = saved_samples(ended, "program")
    spans = [
        [sample["token_ids"][:start], sample["token_ids"][start:end]]
        for sample in samples
        for start, end in sample["generated"]
    ]
    assert len(samples) == len(calls) / 2 == STEPS * 2 * 2, "both calls of a program are one sequence"
    assert sorted(spans) == sorted(calls)
    tries = saved_samples(ended, "tries")
    assert len(tries) == STEPS * 2 * 2 and max(len(sample["generated"]) for sample in tries) == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("vllm")
def test_an_update_of_the_weights_within_a_conversation_shows_in_its_versions(tmp_path: Path) -> None:
    words = (
        "rollout.max_head_offpolicyness=2",
        "total_train_steps=8",
        "environments.train.0.workflow.args.max_turns=8",
    )
    ended = trained("vllm", tmp_path, *words)
    assert ended.code == 0, ended.text
    assert audit(ended.ledger(), 2) == []
    weights = [each["weights"] for name in ("tries", "program") for each in saved_samples(ended, name)]
    assert any(oldest < newest for oldest, newest in weights)
    lines = [line for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    fresh = [line["offpolicy/logprob_diff_max"] for line in lines if line["offpolicy/staleness_max"] == 0]
    assert fresh and max(fresh) < 1e-4
