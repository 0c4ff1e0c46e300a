"""Supervised training by its command: a trainer alone."""

import pytest

from tests.ring.start import left_behind, run

pytestmark = pytest.mark.xdist_group("ring-2")


def test_it_learns_from_rows_and_says_so_at_every_step(tmp_path):
    ended = run(tmp_path, "total_train_steps=6", "evaluator.freq_steps=3", config="sft.yaml")
    assert ended.code == 0, ended.said
    assert "Error" not in ended.out and ended.err == "", ended.said
    losses = ended.metric("train/loss")
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "eval/loss" in line] == [3, 6]
    assert (ended.model() / "model.safetensors").exists()
    assert left_behind(ended.directory, set()) == []
