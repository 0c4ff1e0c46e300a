"""PPO runs: policy and critic learn, and both are in the checkpoints."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_like.data.tasks.addition import Addition
from areal_like.models import model_folder
from tests.ring.start import Ended, left_behind, run, running, warnings_in
from tests.support.answer_knowledge import greedy_accuracy

pytestmark = pytest.mark.xdist_group("ring-1")

LEARNT = 0.15
"""By how much the share of held-out rows that are answered right must have grown."""
ALL = 0.9
START = model_folder("builtin:tiny-addition")
SHORTER = ("gconfig.n_samples=4", "evaluator.freq_steps=null")


def held_out(folder: Path) -> float:
    return greedy_accuracy(folder, Addition().rows("test"))


def sound_run(folder: Path, steps: int, *words: str) -> Ended:
    """A run without a warning whose checkpoint has a policy and a critic, and which leaves nothing behind."""
    ended = run(folder, *SHORTER, f"total_train_steps={steps}", *words, config="ppo.yaml")
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.text
    assert len(ended.metric("critic/loss")) == steps and ended.metric("critic/value_mean")[0] == 0
    kinds: dict[Any, Path] = {AutoModelForCausalLM: ended.model()}
    kinds[AutoModelForSequenceClassification] = ended.model() / "critic"
    for kind, model in kinds.items():
        _, loading = kind.from_pretrained(model, output_loading_info=True)
        assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert left_behind(ended.directory, set()) == []
    return ended


def test_policy_and_critic_learn_in_one_run_and_both_are_in_its_checkpoint(tmp_path):
    losses = sound_run(tmp_path, 8, "train_dataset.batch_size=32").metric("critic/loss")
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.slow
def test_a_short_run_raises_the_held_out_score_and_values_fit_returns(tmp_path):
    ended = sound_run(tmp_path, 36)
    assert held_out(ended.model()) >= held_out(START) + LEARNT
    losses = ended.metric("critic/loss")
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    values, returns = ended.metric("critic/value_mean"), ended.metric("critic/return_mean")
    assert abs(values[-1] - returns[-1]) < 0.15


@pytest.mark.slow
@pytest.mark.night
def test_the_shipped_ppo_run_learns_nearly_the_whole_task(tmp_path):
    ended = run(tmp_path, config="ppo.yaml", limit_s=900)
    assert ended.code == 0, ended.text
    assert held_out(ended.model()) >= ALL, ended.summary["curve"]


@pytest.mark.slow
def test_a_run_whose_trainer_is_killed_recovers_policy_and_critic(tmp_path):
    few = ("total_train_steps=8", "train_dataset.batch_size=16", "recover.freq_steps=2", "evaluator.freq_steps=null")
    with running(tmp_path, *few, config="ppo.yaml") as ring:
        ring.wait_for_step(5)
        ring.kill("trainer")
        ended = ring.wait()
    assert ended.code == 0 and ended.summary["attempts"] == 2, ended.text
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "critic/loss" in line] == list(range(1, 9))
