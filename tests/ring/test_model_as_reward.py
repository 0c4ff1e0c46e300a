"""A trained reward model is the reward of another run, also when its server is killed."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.ring.start import SHORT, run, running

pytestmark = pytest.mark.xdist_group("ring-1")

STEPS = 6
NOTED = """
import json
from pathlib import Path

class Noted:
    \"\"\"One turn, written down.\"\"\"

    async def run(self, episode, row):
        prompt = episode.encode(row["prompt"])
        samples = await episode.generate(prompt)
        rewards = await episode.score(row, samples)
        with (Path(__file__).parent / "noted.jsonl").open("a") as file:
            for sample, reward in zip(samples, rewards):
                file.write(json.dumps([row["prompt"], sample.text, reward.value]) + "\\n")
        return [episode.trajectory(prompt, *pair) for pair in zip(samples, rewards)]
"""


def scores(folder: Path, texts: list[tuple[str, str]]) -> list[float]:
    """By transformers: prompt, answer and the token that ends it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    values = []
    for prompt, answer in texts:
        ids = [*tokenizer.encode(prompt), *tokenizer.encode(answer), tokenizer.eos_token_id]
        with torch.no_grad():
            values.append(float(model(torch.tensor([ids])).logits[0, 0]))
    return values


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_trained_reward_model_is_the_reward_of_the_next_run(tmp_path: Path, sign: signal.Signals) -> None:
    few = ("total_train_steps=6", "train_dataset.batch_size=16", "evaluator.freq_steps=null")
    judge = run(tmp_path, *few, config="reward_model.yaml")
    assert judge.code == 0, judge.text

    (tmp_path / "noted.py").write_text(NOTED)
    parts = "reward.parts=[{name: exact, weight: 0}, {name: model, args: {path: reward-model-addition/t}}]"
    own = ["workflow.name=noted.py:Noted", "reward.name=null", parts, "reward.timeout_s=2"]
    phases = ("generating", "serving", "waiting")
    own += ["watchdog.notice_s=5", *(f"watchdog.{phase}_s=40" for phase in phases)]  # long after answers would be late
    with running(tmp_path, *SHORT, *own, f"total_train_steps={STEPS}", "evaluator.freq_steps=null", trial="u") as ring:
        ring.wait_for_step(2)
        for pid in ring.pids("reward"):
            os.kill(pid, sign)
        ended = ring.wait()
    assert ended.code == 0 and ended.summary["attempts"] == 1, ended.text
    assert re.search(r"reward/0 .*; it is replaced \(incarnation 2\)", ended.text)

    noted = [json.loads(line) for line in (tmp_path / "noted.jsonl").read_text().splitlines()]
    expected = scores(judge.model(), [(prompt, answer) for prompt, answer, _ in noted])
    assert len(noted) >= STEPS * 64 and len(set(expected)) > 20
    assert [reward for *_, reward in noted] == pytest.approx(expected, abs=1e-5)
    means = ended.metric("reward/mean")
    assert ended.metric("reward/part/model") == pytest.approx(means)
    assert len(means) == STEPS and min(expected) <= min(means) <= max(means) <= max(expected)
