"""A run with several environments: each has its own reward, workflow and length of answers, and its own metrics."""

from pathlib import Path

import pytest

from tests.ring.start import run
from tests.support.running_totals import TOTALS

pytestmark = pytest.mark.xdist_group("ring-1")

EXPERIMENT = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: mix
total_train_steps: 2
async_training: false
environments:
  train:
    - {id: addition}
    - {id: addition, name: short, args: {digits: 1}, max_new_tokens: 2, reward: {name: length, args: {limit: 1}}}
    - {id: addition, name: own, args: {digits: 1}, workflow: {name: "turns.py:Twice"}}
train_dataset: {batch_size: 12}
valid_dataset: {drop_last: false}
gconfig: {n_samples: 2, max_new_tokens: 6, temperature: 0.5}
evaluator: {freq_steps: 2, num_examples: 200}
"""
WORKFLOW = """
class Twice:
    async def run(self, episode, row):
        prompt = episode.encode(row["prompt"])
        return [episode.trajectory(prompt, each, 2.0) for each in await episode.generate(prompt)]
"""


def test_each_environment_has_its_reward_workflow_and_length(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text(EXPERIMENT)
    (tmp_path / "turns.py").write_text(WORKFLOW)
    ended = run(tmp_path, "environments.train.0.ratio=2", config="mix.yaml")
    assert ended.code == 0, ended.text
    groups = {name: ended.metric(f"env/{name}/groups") for name in ("addition", "short", "own")}
    assert [sum(step) for step in zip(*groups.values(), strict=True)] == [12, 12]
    assert max(ended.metric("env/short/answer_tokens_mean")) <= 2
    assert set(ended.metric("env/own/reward")) == {2.0}
    assert max(ended.metric("env/short/reward")) < 0 <= min(ended.metric("env/addition/reward"))
    assert len(ended.metric("eval/env/short")) == 2


PLAYED = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: played
total_train_steps: 2
async_training: false
environments:
  train:
    - id: totals.py:Crashing
      args: {rounds: 2}
      workflow: {name: text_environment, args: {max_processes: 1}}   # groups wait for one another
    - {id: addition}
train_dataset: {batch_size: 6, max_length: 40, shuffle: false}
valid_dataset: {drop_last: false}
gconfig: {n_samples: 2, max_new_tokens: 6, temperature: 0.5}
evaluator: {freq_steps: 2, num_examples: 100}
"""
CRASHING = (
    TOTALS
    + """
import os

class Crashing(Totals):
    def step(self, action):
        try:
            open("crashed", "x").close()
            os._exit(1)
        except FileExistsError:
            return super().step(action)
"""
)


def test_a_text_environment_is_played_beside_others_and_a_crash_of_its_process_is_only_counted(tmp_path: Path) -> None:
    (tmp_path / "played.yaml").write_text(PLAYED)
    (tmp_path / "totals.py").write_text(CRASHING)
    ended = run(tmp_path, config="played.yaml")
    assert ended.code == 0, ended.text
    totals, sums = (ended.metric(f"env/{name}/groups") for name in ("Crashing", "addition"))
    assert totals and sums and sum(totals) + sum(sums) == 12
    assert ended.metric("rollout/environment_failures") == [1]
    assert ended.metric("rollout/turns_mean")[0] > 1
    assert len(ended.metric("eval/env/Crashing")) == len(ended.metric("eval/env/addition")) == 2
