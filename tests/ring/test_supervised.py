"""Supervised training runs: a trainer alone."""

import pytest

from areal_like.observe.reading import read_lines
from areal_like.process.checkpoint_files import complete_checkpoints
from launcher.runs.checkpoint_reader import read_checkpoint
from tests.ring.start import left_behind, run, warnings_in

pytestmark = pytest.mark.xdist_group("ring-2")


def test_supervised_training_learns_and_reports_every_step(tmp_path):
    ended = run(tmp_path, "total_train_steps=6", "evaluator.freq_steps=3", config="sft.yaml")
    assert ended.code == 0 and warnings_in(ended.out) == [], ended.text
    assert "Error" not in ended.out and ended.err == "", ended.text
    losses = ended.metric("train/loss")
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert [line["step"] for line in ended.lines("metrics.jsonl") if "eval/loss" in line] == [3, 6]
    assert (ended.model() / "model.safetensors").exists()
    assert left_behind(ended.directory, set()) == []


def test_a_run_limited_by_epochs_shows_progress_and_its_model(tmp_path):
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
    assert ended.code == 0, ended.text
    assert len(ended.metric("train/loss")) == 6 and "step 6/6" in ended.out
    lines = ended.out.splitlines()
    assert f"model    {ended.model().relative_to(tmp_path)}  (a Hugging Face directory)" in lines
    assert f"chat     python -m launcher chat {ended.directory.relative_to(tmp_path)}" in lines
    assert list((ended.directory / "tensorboard").glob("events.*"))


@pytest.mark.shows("evaluator.fileroot", "recover.fileroot", "saver.fileroot", "stats_logger.fileroot")
def test_a_run_with_parts_on_other_disks_is_resumed(tmp_path):
    folders = {"saver": "kept", "recover": "states", "stats_logger": "tracked", "evaluator": "scored"}
    words = ("evaluator.freq_steps=1", "evaluator.num_examples=8", "recover.freq_steps=1", "recover.keep=1")
    roots = [f"{section}.fileroot={folder}" for section, folder in folders.items()]
    first = run(
        tmp_path, *words, *roots, "stats_logger.tensorboard.path=board", "total_train_steps=2", config="sft.yaml"
    )
    assert first.code == 0 and first.err == "", first.text
    of = {section: tmp_path / folder / "sft-addition" / "t" for section, folder in folders.items()}
    assert f"saver.fileroot: checkpoints -> {of['saver']}/checkpoints" in first.out
    steps = [folder.name for _, folder in complete_checkpoints(of["saver"] / "checkpoints")]
    assert steps == ["step_000002"] == [path.name for path in (of["recover"] / "resume").iterdir()]
    assert list((of["stats_logger"] / "trackers" / "board").glob("events.*"))
    assert first.model() == first.directory / "checkpoints" / "step_000002"
    assert "Qwen3" in read_checkpoint(first.directory, None, lambda it: (it / "config.json").read_text(), pytest.fail)

    again = run(tmp_path, "resume=t", "total_train_steps=3", config=None)
    assert again.code == 0 and "resuming from step 2 (attempt 2)" in again.out, again.text
    assert [path.name for path in (of["recover"] / "resume").iterdir()] == ["step_000003"]
    scores = read_lines(of["evaluator"] / "evaluations" / "evaluations.jsonl")
    assert [line["step"] for line in scores] == [1, 2, 3]
    assert [line for line in again.lines("metrics.jsonl") if "eval/loss" in line] == scores
    before = (again.directory / "config.yaml").read_bytes()
    third = run(tmp_path, "resume=t", "model.optimizer.lr=0.5", config=None)
    assert third.code == 0 and "all 3 steps are done; nothing was started" in third.out, third.text
    assert (again.directory / "config.yaml").read_bytes() == before
