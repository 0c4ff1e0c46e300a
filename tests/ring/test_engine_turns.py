"""Conversations and agents over external engines: the ids trained on are those that the engine sampled."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from areal_like.models import model_folder
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


SOLVERS = """
from agents import Agent, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool
from agents.exceptions import MaxTurnsExceeded
from pydantic_ai import Agent as OtherAgent
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider as OtherProvider
from pydantic_ai.usage import UsageLimits


def add(expression):
    try:
        return str(sum(map(int, expression.split("+"))))
    except ValueError:
        return "?"


@function_tool(failure_error_function=lambda context, fault: "?")
def calculator(expression: str) -> str:
    \"\"\"Adds numbers, as in 12+34.\"\"\"
    return add(expression)


async def with_agents_sdk(question, client):
    solver = Agent(name="solver", model="policy", tools=[calculator])
    run_config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
    result = Runner.run_streamed(solver, question, max_turns=2, run_config=run_config)
    async for _ in result.stream_events():
        pass


async def with_pydantic_ai(question, client):
    solver = OtherAgent(OpenAIChatModel("any", provider=OtherProvider(openai_client=client)), retries=0)

    @solver.tool_plain
    def calculator(expression: str) -> str:
        \"\"\"Adds numbers, as in 12+34.\"\"\"
        return add(expression)

    await solver.run(question, usage_limits=UsageLimits(request_limit=2))


async def solve(row, client):
    program = (with_agents_sdk, with_pydantic_ai)[sum(map(ord, row["prompt"])) % 2]
    try:
        await program(row["prompt"], client)
    except (MaxTurnsExceeded, ModelBehaviorError, UnexpectedModelBehavior, UsageLimitExceeded):
        pass  # the model calls again, or what there is not
"""
FRAMEWORKS = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {task: sums}, {rollout: vllm}, {tracker: none}, _self_]
experiment_name: frameworks
workflow: {name: agent}
agent: {function: "frameworks.py:solve", call_format: python}
train_dataset: {batch_size: 8, max_length: 40}
valid_dataset: null
gconfig: {n_samples: 8, max_new_tokens: 24, temperature: 1.0}
rollout: {max_head_offpolicyness: 0, setup_timeout: 300, dump_to_file: true}
actor: {path: model, dtype: float32}
recover: {mode: disabled}
"""


def write_tools_model(folder: Path) -> None:
    """The model that calls tools, with a token for characters that it does not know: vLLM's warm-up has some."""
    shutil.copytree(model_folder("builtin:tiny-tools"), folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["unk_token"] = "<pad>"
    file.write_text(json.dumps(tokenizer))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("vllm")
def test_agents_of_frameworks_stream_and_call_a_tool_over_vllm(tmp_path: Path) -> None:
    """The model calls the tool by itself."""
    write_tools_model(tmp_path / "model")
    (tmp_path / "frameworks.py").write_text(SOLVERS)
    (tmp_path / "frameworks.yaml").write_text(FRAMEWORKS)
    words = (f"vllm.python={require_engine('vllm')}", f"total_train_steps={STEPS}")
    ended = run(tmp_path, *words, config="frameworks.yaml", limit_s=500)
    assert ended.code == 0, ended.text
    assert audit(ended.ledger(), 0) == []
    assert ended.metric("rollout/failed") == [0] * STEPS
    apart = ended.metric("offpolicy/logprob_diff_max")
    assert len(apart) == STEPS and max(apart) < 1e-4, "of every token, after the ids that the engine was given"
    files = sorted((ended.directory / "rollouts").glob("step_*.jsonl"))
    samples = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    with_tool = [sample for sample in samples if "tool" in [message["role"] for message in sample["messages"]]]
    assert {len(sample["generated"]) for sample in with_tool} == {2}, "the second call goes on where the first ended"
    questions = [sample["messages"][0]["content"] for sample in with_tool]
    assert {sum(map(ord, question)) % 2 for question in questions} == {0, 1}, "both frameworks have called it"
