"""A run trains on, and is evaluated by, an environment of the real package verifiers, in a process of its own."""

import shutil
from pathlib import Path

import pytest

from tests.ring.start import run
from tests.support.verifiers_environments import PACKAGES, require_verifiers

pytestmark = pytest.mark.xdist_group("verifiers")

EXPERIMENT = """
defaults: [{{algorithm: dr_grpo}}, {{actor: tiny}}, {{rollout: embedded}}, {{tracker: none}}, _self_]
experiment_name: verifiers
total_train_steps: 2
environments:
  train:
    - {{id: tests/v0-single, python: {python}, args: {{first: 20}}}}
train_dataset: {{batch_size: 4}}
valid_dataset: {{drop_last: false}}
gconfig: {{n_samples: 2, max_new_tokens: 6, temperature: 0.5}}
evaluator:
  freq_steps: 2
  benchmarks: [{{name: held_out, id: tests/v0-single, python: {python}, args: {{first: 20}}}}]
"""


def test_a_run_trains_and_evaluates_on_an_environment_of_one_turn(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text(EXPERIMENT.format(python=require_verifiers()))
    shutil.copy(PACKAGES / "v0_single.py", tmp_path)
    ended = run(tmp_path, "rollout.num_episode_workers=1", "recover.mode=disabled", config="v.yaml")
    assert ended.code == 0, ended.text
    assert ended.metric("env/v0-single/groups") == [4, 4]
    assert set(ended.metric("reward/part/length")) != {0.0}
    assert len(ended.metric("eval/held_out/score")) == len(ended.metric("eval/env/v0-single")) == 2
    assert ended.metric("eval/score") == ended.metric("eval/env/v0-single")
    assert max(ended.metric("offpolicy/logprob_diff_max")) < 1e-4
