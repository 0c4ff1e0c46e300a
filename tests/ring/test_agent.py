"""A program that calls the policy as an agent is trained by the real command."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.ring.start import LIMIT_S, SHORT, run, running
from tests.support.agent_programs import PROGRAM

pytestmark = pytest.mark.xdist_group("ring-1")

CALLS_TWICE = f"""
{PROGRAM}
first = complete(row["prompt"], max_tokens=8)["text"]
complete(row["prompt"] + first + row["prompt"], max_tokens=8)
"""


def test_a_run_trains_on_the_calls_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "calls_twice.py").write_text(CALLS_TWICE)
    stats = ["actor.log_agent_stats=true", "actor.log_agent_stats_keys=[undelivered_calls, sequences]"]
    ended = run(
        tmp_path,
        *(*SHORT, *stats, "workflow.name=agent", "agent.command=[python, calls_twice.py]", "evaluator.freq_steps=null"),
        *("train_dataset.batch_size=4", "n_samples=2", "total_train_steps=1", "valid_dataset=null"),
    )
    assert ended.code == 0, ended.text
    assert ended.metric("rollout/conversations") == [8]
    assert ended.metric("rollout/turns_mean") == [2]
    (breaks,) = ended.metric("rollout/template_breaks")
    assert breaks > 0 and ended.metric("rollout/samples") == [8 + breaks], "texts come without the stop token"
    assert ended.metric("rollout/agent/undelivered_calls/max") == [0]
    assert ended.metric("rollout/agent/sequences/max") == [2]


INTERRUPTED = (
    PROGRAM
    + """
import signal, uuid
from pathlib import Path

calls = []

def recorded(prompt):
    answer = complete(prompt, max_tokens=8, return_token_ids=True)
    calls.append([answer["prompt_token_ids"], answer["token_ids"]])
    return answer["text"]

first = recorded(row["prompt"])
if not Path("was_killed").exists():
    Path("in_the_middle").touch()
    signal.pause()
recorded(f"{row['prompt']}{first} no, {row['prompt']}")
Path("calls", uuid.uuid4().hex).write_text(json.dumps(calls))
"""
)


def test_a_session_that_is_killed_in_its_middle_is_run_again_and_only_that_is_trained_on(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    words = ("workflow.name=agent", "agent.command=[python, interrupted.py]", "rollout.max_head_offpolicyness=0")
    sizes = ("train_dataset.batch_size=2", "n_samples=2", "total_train_steps=2", "valid_dataset=null")
    more = ("evaluator.freq_steps=null", "rollout.dump_to_file=true")
    with running(tmp_path, *SHORT, *words, *sizes, *more) as ring:
        ends = time.monotonic() + LIMIT_S
        while not (tmp_path / "in_the_middle").exists():
            assert ring.process.poll() is None and time.monotonic() < ends, ring.text()
            time.sleep(0.05)
        (tmp_path / "was_killed").touch()
        ring.kill("episodes")
        ended = ring.wait()
    assert ended.code == 0, ended.text
    assert ended.summary["attempts"] == 1, "a worker is replaced, not the run"
    assert audit(ended.ledger(), 0) == []
    files = sorted((ended.directory / "rollouts").glob("step_*.jsonl"))
    samples = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    trained = Counter(
        (*sample["token_ids"][:start], None, *sample["token_ids"][start:end])
        for sample in samples
        for start, end in sample["generated"]
    )
    whole = [json.loads(file.read_text()) for file in (tmp_path / "calls").iterdir()]
    assert trained == Counter((*prompt, None, *answer) for calls in whole for prompt, answer in calls)
    assert trained.total() == 2 * 2 * 2 * 2, "two calls of each sample of two groups in two steps"
    assert len({(sample["step"], sample["group"], sample["conversation"]) for sample in samples}) == 8
