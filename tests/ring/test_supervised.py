"""Supervised training by its command: a trainer alone."""

import pytest

from tests.ring.start import left_behind, run, warnings_in

pytestmark = pytest.mark.xdist_group("ring-2")


def test_it_learns_from_rows_and_says_so_at_every_step(tmp_path):
    ended = run(tmp_path, "total_train_steps=6", "evaluator.freq_steps=3", config="sft.yaml")
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.said
    assert "Error" not in ended.out and ended.err == "", ended.said
    losses = ended.metric("train/loss")
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "eval/loss" in line] == [3, 6]
    assert (ended.model() / "model.safetensors").exists()
    assert left_behind(ended.directory, set()) == []


def test_a_run_that_epochs_end_says_how_far_it_is_and_where_its_model_is(tmp_path):
    rows = "".join(f'{{"question": "{n}+{n}=", "truth": {{"sum": "{2 * n}"}}}}\n' for n in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    own = ("train_dataset.path=rows.jsonl", "task.name=null", "train_dataset.batch_size=16", "valid_dataset=null")
    fields = "train_dataset.fields={prompt: question, answer: truth.sum}"
    ended = run(
        tmp_path,
        *own,
        fields,
        "total_train_steps=null",
        "total_train_epochs=3",
        "recover.mode=disabled",
        config="sft.yaml",
    )
    assert ended.code == 0, ended.said
    assert len(ended.metric("train/loss")) == 6 and "step 6/6" in ended.out
    *_, model, use = ended.out.rstrip().splitlines()
    assert model == f"model    {ended.model().relative_to(tmp_path)}  (a Hugging Face directory)"
    assert use == f"try it   python -m launcher chat {ended.directory.relative_to(tmp_path)}"
    assert list((ended.directory / "tensorboard").glob("events.*"))
