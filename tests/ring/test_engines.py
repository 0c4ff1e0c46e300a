"""The ring with servers of others, by the command line: it learns, and is as healthy as with our own server."""

from pathlib import Path

import pytest

from areal_like.rollout.audit import audit
from tests.engine_environments import need
from tests.ring.start import Ended, run, shared_memory, wait_until_gone

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
    found = f"{engine}.python={need(engine)}"
    ended = run(root, f"rollout={engine}", found, *WORDS, *words, limit_s=400)
    assert ended.code == 0, ended.said
    scores = [score for _, score in ended.summary["curve"]]
    assert len(scores) == 2 and scores[1] >= scores[0] - NOISE, scores
    assert wait_until_gone(ended.directory) == {} and not shared_memory(ended.directory)
    assert audit(ended.ledger(), STALENESS) == []
    return ended


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
def test_the_ring_learns_with_servers_of_others(engine: str, tmp_path: Path) -> None:
    check_health(learnt(engine, tmp_path))


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.slow
def test_the_ring_learns_with_weights_that_are_sent(engine: str, tmp_path: Path) -> None:
    check_health(learnt(engine, tmp_path, "actor.weight_update_mode=collective"))


@pytest.mark.slow
@pytest.mark.xdist_group("vllm")
def test_the_ring_learns_with_adapters_on_vllm(tmp_path: Path) -> None:
    """Which vLLM computes in another order than the trainer."""
    ended = learnt("vllm", tmp_path, *LORA, "max_head_offpolicyness=0")
    apart = ended.metric("offpolicy/logprob_diff_max")
    assert len(apart) == STEPS and max(apart) < 1e-3
