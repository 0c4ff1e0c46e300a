"""A reward model by its command: the shipped file learns to tell right sums from wrong ones."""

from typing import Any

import pytest
import torch

from areal_like.data.row_tokenizer import RowTokenizer
from areal_like.data.tasks.addition import Addition
from areal_like.data.tokenizer import TextTokenizer
from tests.ring.start import left_behind, run, warnings_in

pytestmark = pytest.mark.xdist_group("ring-2")


def test_the_shipped_file_ranks_nine_of_ten_held_out_pairs_right(tmp_path):
    transformers = pytest.importorskip("transformers")
    ended = run(tmp_path, config="reward_model.yaml")
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.said
    assert "Error" not in ended.out and ended.err == "", ended.said
    accuracy = {line["step"]: line["eval/accuracy"] for line in ended.lines("metrics.jsonl") if "eval/accuracy" in line}
    assert sorted(accuracy) == [100, 200, 300, 400, 500] and accuracy[500] > 0.9, accuracy
    assert ended.summary["objective_metric"] == "eval/accuracy" and ended.summary["objective"] == accuracy[500]
    assert ended.metric("train/loss")[0] == pytest.approx(0.6931, abs=1e-3), "a new head tells nothing apart"

    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(ended.model())
    rows = Addition().rows("test")[:200]
    tokens = RowTokenizer(TextTokenizer(ended.model()), "rw").tokens(rows)
    ids = torch.from_numpy(tokens.token_ids).long().reshape(len(tokens), -1)
    with torch.no_grad():
        scores = model.eval()(ids).logits[:, 0]
    assert (scores[::2] > scores[1::2]).double().mean() > 0.85
    shown = ended.model().relative_to(tmp_path)
    assert f'AutoModelForSequenceClassification.from_pretrained("{shown}")\n' in ended.out
    assert left_behind(ended.directory, set()) == []
