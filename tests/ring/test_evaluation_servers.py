"""A run whose evaluations have a server of their own."""

from pathlib import Path

import pytest

from areal_like.training.transports.kept_versions import VERSIONS_KEPT
from tests.ring.start import SHORT, run
from tests.support.engine_environments import require_engine


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
    words = (*SHORT, "total_train_steps=80", "evaluator.freq_steps=40", "evaluator.backend=auto")
    sizes = ("evaluator.num_examples=96", "evaluator.n_samples=24")
    ended = run(tmp_path, *words, *sizes, "evaluator.benchmarks=[{name: second, path: addition, num_examples: 8}]")
    assert ended.code == 0, ended.text
    step, evaluated, late_by = 0, list[tuple[int, str]](), 0
    for event in ended.ledger():
        if event["event"] == "trained":
            step = event["step"]
        if event["event"] == "evaluated":
            assert event["versions"] == [event["version"]] * 2
            evaluated.append((event["version"], event.get("benchmark", "")))
            if evaluated[-1] == (40, ""):
                late_by = step - 40
    assert evaluated == [(version, name) for version in (0, 40, 80) for name in ("", "second")]
    assert late_by > VERSIONS_KEPT, "the first one was too quick for the second one to begin late"


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
