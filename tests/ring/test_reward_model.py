"""Reward model runs: the shipped file learns to rank correct sums higher."""

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.data.row_tokenizer import RowTokenizer
from areal_like.data.tasks.addition import Addition
from areal_like.data.tokenizer import TextTokenizer
from tests.ring.start import Ended, left_behind, run, warnings_in

pytestmark = pytest.mark.xdist_group("ring-2")


def sound_run(folder: Path, *words: str) -> tuple[Ended, dict[int, float], Any]:
    """A run without a warning: how many held-out pairs it ranked right at which step, and its model in transformers."""
    transformers = pytest.importorskip("transformers")
    ended = run(folder, *words, config="reward_model.yaml")
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.text
    assert "Error" not in ended.out and ended.err == "", ended.text
    assert ended.metric("train/loss")[0] == pytest.approx(0.6931, abs=1e-3), "a new head tells nothing apart"
    shown = ended.model().relative_to(folder)
    assert f'AutoModelForSequenceClassification.from_pretrained("{shown}")\n' in ended.out
    assert left_behind(ended.directory, set()) == []
    accuracy = {line["step"]: line["eval/accuracy"] for line in ended.lines("metrics.jsonl") if "eval/accuracy" in line}
    assert ended.summary["objective_metric"] == "eval/accuracy"
    assert ended.summary["objective"] == accuracy[max(accuracy)]
    return ended, accuracy, transformers.AutoModelForSequenceClassification.from_pretrained(ended.model())


def test_a_short_run_ends_with_a_scored_model_that_transformers_loads(tmp_path):
    _, accuracy, model = sound_run(tmp_path, "total_train_steps=10", "evaluator.freq_steps=10")
    assert accuracy.keys() == {10} and model.config.num_labels == 1


@pytest.mark.slow
def test_the_shipped_file_ranks_nine_of_ten_held_out_pairs_right(tmp_path):
    ended, accuracy, model = sound_run(tmp_path)
    assert sorted(accuracy) == [100, 200, 300, 400, 500] and accuracy[500] > 0.9, accuracy
    rows = Addition().rows("test")[:200]
    tokens = RowTokenizer(TextTokenizer(ended.model()), "rw").tokens(rows)
    ids = torch.from_numpy(tokens.token_ids).long().reshape(len(tokens), -1)
    with torch.no_grad():
        scores = model.eval()(ids).logits[:, 0]
    assert (scores[::2] > scores[1::2]).double().mean() > 0.85
