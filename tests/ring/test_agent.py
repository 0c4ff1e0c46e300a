"""A program that calls the policy as an agent is trained by the real command."""

from pathlib import Path

import pytest

from tests.ring.start import SHORT, run

pytestmark = pytest.mark.xdist_group("ring-1")

PROGRAM = """
import json, os, sys, urllib.request
row = json.loads(sys.stdin.readline())
def complete(prompt):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"prompt": prompt, "max_tokens": 8}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["text"]
complete(row["prompt"] + complete(row["prompt"]) + row["prompt"])
"""


def test_a_run_trains_on_the_calls_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "calls_twice.py").write_text(PROGRAM)
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
