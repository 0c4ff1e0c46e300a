"""A run whose evaluations have a server of their own."""

from pathlib import Path

import pytest

from areal_like.training.transports.kept_versions import VERSIONS_KEPT
from tests.ring.start import SHORT, run
from tests.support.engine_environments import require_engine

WAITS = """
import glob, re, time

def late(prompt, completion):
    while True:
        for path in glob.glob("runs/*/*/rollouts/ledger.jsonl"):
            if re.search('"event":"trained",.*"step":13,', open(path).read()):
                return 1.0
        time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async_training=true", "max_head_offpolicyness=0"])
def test_evaluations_run_on_their_own_server(tmp_path: Path, mode: str) -> None:
    words = (*SHORT, "total_train_steps=4", "evaluator.freq_steps=2", "evaluator.backend=auto", mode)
    ended = run(tmp_path, *words)
    assert ended.code == 0, ended.text
    events = [event for event in ended.ledger() if event["event"] == "evaluated"]
    assert [event["version"] for event in events] == [0, 2, 4]
    assert all(event["servers"] == ["server/1"] and len(set(event["versions"])) == 1 for event in events)
    assert (ended.directory / "logs/server-1.log").is_file()


@pytest.mark.slow
def test_an_evaluation_that_begins_late_uses_the_weights_of_its_step(tmp_path: Path) -> None:
    """The reward of the first one waits for step 14, so that the second one of step 8 begins after it."""
    (tmp_path / "late.py").write_text(WAITS)
    first = "{name: first, path: addition, num_examples: 1, reward: {name: 'late.py:late'}}"
    benchmarks = f"evaluator.benchmarks=[{first}, {{name: second, path: addition, num_examples: 8}}]"
    words = (*SHORT, "total_train_steps=16", "evaluator.freq_steps=8", "evaluator.backend=auto", benchmarks)
    ended = run(tmp_path, *words, "valid_dataset=null", "evaluator.eval_base_model=false", "reward.timeout_s=300")
    assert ended.code == 0, ended.text
    evaluated = [event for event in ended.ledger() if event["event"] == "evaluated"]
    assert [(event["version"], event["benchmark"]) for event in evaluated] == [
        *((8, "first"), (8, "second"), (16, "first"), (16, "second")),
    ]
    assert all(event["versions"] == [event["version"]] * 2 for event in evaluated)
    assert VERSIONS_KEPT < 14 - 8


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize("weights", ["disk", "collective"])
def test_their_engine_may_be_another_one(tmp_path: Path, weights: str) -> None:
    python = require_engine("vllm")
    words = (*SHORT, "total_train_steps=2", "evaluator.freq_steps=2", "evaluator.backend=vllm", f"vllm.python={python}")
    ended = run(
        *(tmp_path, *words, "rollout.setup_timeout=600", f"actor.weight_update_mode={weights}"),
        limit_s=1700,
    )
    assert ended.code == 0, ended.text
    events = [event for event in ended.ledger() if event["event"] == "evaluated"]
    assert [(event["version"], event["servers"]) for event in events] == [(0, ["server/1"]), (2, ["server/1"])]
    assert "vLLM" in (ended.directory / "logs/server-1.log").read_text()
