"""Whole runs with external engines learn like those with the embedded engine."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from areal_like.process.run_memory import SHARED_MEMORY
from areal_like.rollout.audit import audit
from tests.ring.start import Ended, Running, left_behind, memory_of, running, shared_memory, wait_until_gone
from tests.support.engine_environments import require_engine

STEPS, STALENESS = 10, 2
NOISE = 0.04
"""How much a score on so few rows may sink by chance."""
WORDS = (
    f"total_train_steps={STEPS}",
    "rollout.setup_timeout=300",
    f"evaluator.freq_steps={STEPS}",
    "evaluator.num_examples=400",
    "train_dataset.batch_size=32",
    "actor.optimizer.warmup_steps_proportion=0",
    "recover.freq_steps=100",
)
LORA = ("actor.use_lora=true", "actor.weight_update_mode=adapter", "actor.lora_rank=8", "actor.lr=2e-3")
OTHERS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("vllm", "sglang")]


def learnt(engine: str, root: Path, *words: str) -> Ended:
    found = f"{engine}.python={require_engine(engine)}"
    with running(root, f"rollout={engine}", found, *WORDS, *words) as going:
        going.wait_for_step(1)
        made = segments(going)
        ended = going.wait(400)
    assert ended.code == 0, ended.text
    assert made and left(made) == [], "it makes some, and they are gone"
    scores = [score for _, score in ended.summary["curve"]]
    assert len(scores) == 2 and scores[1] >= scores[0] - NOISE, scores
    assert wait_until_gone(ended.directory) == {} and not shared_memory(ended.directory)
    assert audit(ended.ledger(), STALENESS) == []
    return ended


def segments(going: Running) -> list[str]:
    """What the engine has made in shared memory outside of the run's folder so far."""
    memory = memory_of(going.directory)
    return [name for path in memory.glob("segments-*.json") for name, _ in json.loads(path.read_text())]


def left(names: list[str]) -> list[str]:
    return [name for name in names if (SHARED_MEMORY / name).exists()]


def check_health(ended: Ended) -> None:
    """What is trained on came from the weights that it is said to come from."""
    lines = [line for line in ended.lines("metrics.jsonl") if "train/loss" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    fresh = [line["offpolicy/logprob_diff_max"] for line in lines if line.get("offpolicy/staleness_max") == 0]
    assert fresh and max(fresh) < 1e-4, fresh
    assert max(line["offpolicy/staleness_max"] for line in lines) <= STALENESS
    assert ended.summary["attempts"] == 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", OTHERS)
def test_a_run_learns_with_external_engines(engine: str, tmp_path: Path) -> None:
    check_health(learnt(engine, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["nobody", "guardian", "launcher", "server/0"])
@pytest.mark.parametrize("engine", OTHERS)
def test_an_interrupted_start_leaves_nothing_in_shared_memory(engine: str, victim: str, tmp_path: Path) -> None:
    words = (f"rollout={engine}", f"{engine}.python={require_engine(engine)}", "rollout.setup_timeout=300")
    with running(tmp_path, *words) as going:
        ends = time.monotonic() + 400
        while not ((going.directory / "run.json").exists() and (made := segments(going))):
            assert going.process.poll() is None and time.monotonic() < ends, going.text()
            time.sleep(0.02)
        assert "server/0 ready" not in going.text()
        if victim == "nobody":
            going.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
            going.process.send_signal(signal.SIGINT)
        elif victim == "server/0":
            os.kill(min(going.pids("server")), signal.SIGKILL)
            while left(made):  # it may be replaced, and what it had made goes all the same
                assert time.monotonic() < ends, left(made)
                time.sleep(0.1)
            going.process.terminate()
        else:
            os.kill(going.process.pid if victim == "guardian" else going.launcher(), signal.SIGKILL)
        going.wait()
        assert left_behind(going.directory, set()) == []
        assert left(made) == []


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.slow
def test_a_run_learns_with_broadcast_weights(engine: str, tmp_path: Path) -> None:
    check_health(learnt(engine, tmp_path, "actor.weight_update_mode=collective"))


@pytest.mark.slow
@pytest.mark.xdist_group("vllm")
def test_a_run_learns_with_adapters_on_vllm(tmp_path: Path) -> None:
    """Which vLLM computes in another order than the trainer."""
    ended = learnt("vllm", tmp_path, *LORA, "max_head_offpolicyness=0")
    apart = ended.metric("offpolicy/logprob_diff_max")
    assert len(apart) == STEPS and max(apart) < 1e-3
