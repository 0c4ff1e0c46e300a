"""Supervised training reads rows shortly before their use: order, length, resume, and rows that are left out."""

import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from areal_like.data.checked_rows import CHECKED_AT_START
from areal_like.process import pulse
from areal_like.process.errors import Failure, FinalFailure
from areal_like.process.run import LEDGER, Run
from areal_like.training import supervised
from areal_like.training.supervised_batch import DataLength, SupervisedBatch
from areal_like.training.supervised_data import SupervisedData
from tests.support.training_runs import make_run, metrics_of, start_from, world
from tests.training.test_supervised import StopAfter, train_in

NUM_ROWS, SIZE = 700, 64
FALLING = (
    *("model.optimizer.lr_scheduler_type=linear", "model.optimizer.min_lr_ratio=0", "model.optimizer.warmup_steps=0"),
    *("model.optimizer.lr=0.001", "total_train_steps=null", "total_train_epochs=1", "recover.freq_steps=4"),
)


def write_rows(file: Path, bad: dict[int, str] | None = None) -> None:
    """Every fifth row is too long."""
    file.parent.mkdir(exist_ok=True)
    rows = [{"prompt": f"{'0' * (n % 5 == 2)}{n:03}+1=", "answer": f"{n + 1:03}"} for n in range(NUM_ROWS)]
    lines = {number: json.dumps(row) for number, row in enumerate(rows)} | (bad or {})
    file.write_text("".join(f"{lines[number]}\n" for number in range(NUM_ROWS)))


def lazy_run(folder: Path, *overrides: str, bad: dict[int, str] | None = None) -> Run:
    write_rows(folder / "rows.jsonl", bad)
    own = ("train_dataset.path=rows.jsonl", "task.name=null", "valid_dataset=null", "train_dataset.max_length=10")
    return make_run(folder, "sft", *own, f"train_dataset.batch_size={SIZE}", *FALLING, *overrides)


def unchecked_row() -> int:
    """The number of a row that no start looks at."""
    checked = {round(at * (NUM_ROWS - 1) / (CHECKED_AT_START - 1) - 0.5) for at in range(CHECKED_AT_START)}
    near = checked | {number + 1 for number in checked}
    return next(number for number in range(100, NUM_ROWS) if number not in near and number % 5 != 2)


def events(run: Run, name: str) -> list[dict[str, int]]:
    lines = map(json.loads, (run.rollouts / LEDGER).read_text().splitlines())
    return [{key: each[key] for key in ("rows", "steps") if key in each} for each in lines if each["event"] == name]


def test_rows_that_are_too_long_shorten_the_epoch_when_they_are_known(tmp_path):
    run = lazy_run(tmp_path / "run")
    assert train_in(run) == 0
    kept = NUM_ROWS - NUM_ROWS // 5
    lines = [line for line in metrics_of(run) if "train/lr" in line]
    assert events(run, "begun") == [{"steps": NUM_ROWS // SIZE}]
    assert events(run, "corrected") == [{"rows": kept, "steps": kept // SIZE}]
    assert len(lines) == kept // SIZE == 8
    shares = [line["train/lr"] / 0.001 for line in lines]
    assert shares[:-1] == pytest.approx([1 - step / 10 for step in range(7)])
    assert shares[-1] == pytest.approx(1 - 7 / 8), "known before the last batch"
    assert lines[-1]["train/epoch"] == 1.0


def test_a_run_that_is_resumed_has_the_same_rows_and_length(tmp_path):
    whole, parts = (lazy_run(tmp_path / name) for name in ("whole", "parts"))
    assert train_in(whole) == 0
    assert train_in(parts, StopAfter(4)) == 75
    start_from(parts, parts.checkpoints / "step_000004", 4)
    assert train_in(parts) == 0
    expected, actual = (load_file(run.checkpoints / "step_000008" / "model.safetensors") for run in (whole, parts))
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_the_first_step_waits_for_the_rows_of_two_batches_only(tmp_path):
    data = SupervisedData(lazy_run(tmp_path / "run"))
    assert data.train.tokenized.table.num_known == 0
    next(data.train.batches(SIZE, most=SIZE))
    assert data.train.tokenized.table.num_known <= 3 * SIZE


def test_a_step_that_waits_for_rows_is_loading_so_that_their_thread_counts_as_progress(tmp_path, monkeypatch):
    """In a step the work of the waiting thread alone would count, and it does none."""
    descriptor = os.memfd_create("pulse")
    os.ftruncate(descriptor, pulse.PAGE_BYTES)
    page = mmap.mmap(descriptor, pulse.PAGE_BYTES)
    monkeypatch.setenv(pulse.PULSE_FD, str(descriptor))
    data = SupervisedData(lazy_run(tmp_path / "run"))
    pulse.open_pulse()
    ends = time.monotonic() + 5

    def phase() -> str:
        """That of the thread that waits, once it waits."""
        while (slot := pulse.read_slots(page)[0]).phase == pulse.STEP and time.monotonic() < ends:
            time.sleep(0.01)
        return slot.phase

    def rows() -> Iterator[str]:
        yield phase()
        seen.append(phase())  # beside this the state of a checkpoint waits

    seen: list[str] = []
    try:
        with pulse.phase(pulse.STEP):
            seen.append(next(ahead := data._ahead(rows())))
            data.state(0)
            assert pulse.read_slots(page)[0].phase == pulse.STEP and list(ahead) == []
    finally:
        pulse.close_pulse()
    assert seen == [pulse.LOADING, pulse.LOADING]


@pytest.mark.parametrize("bad", ["{no json", '{"question": "1+1="}', '{"prompt": "é", "answer": "1"}'])
def test_an_invalid_row_is_left_out_and_named(tmp_path, caplog, bad):
    number = unchecked_row()
    run = lazy_run(tmp_path / "run", bad={number: bad})
    assert train_in(run) == 0
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("train_dataset.path: ") and f"rows.jsonl:{number + 1}" in line
    assert line.endswith("; the row is left out")
    assert events(run, "corrected") == [{"rows": NUM_ROWS - NUM_ROWS // 5 - 1, "steps": 8}]


def test_a_row_that_changed_since_its_first_epoch_ends_the_run(tmp_path):
    data = SupervisedData(lazy_run(tmp_path / "run", "total_train_epochs=2"))
    batches = data.batches(0)
    for _ in range(8):
        next(batches)
    write_rows(tmp_path / "run" / "rows.jsonl", {5: '{"prompt": "7+7=", "answer": "14"}'})
    with pytest.raises(FinalFailure, match="changed while the run reads it"):
        list(batches)


def test_too_few_rows_are_an_error_once_this_is_known(tmp_path):
    data = SupervisedData(lazy_run(tmp_path / "run", "train_dataset.batch_size=600"))
    with pytest.raises(
        FinalFailure, match=r"^train_dataset\.max_length: 140 of 700 rows .* 560 are left, and 600 are needed"
    ):
        next(data.batches(0))


def test_ranks_that_read_different_rows_end_the_run(monkeypatch):
    """The digest of another rank differs."""
    batch = SupervisedBatch(None, "one", DataLength(9, 3, 3))  # type: ignore[arg-type]
    supervised._check_same_rows(world(), batch)
    group = world()
    monkeypatch.setattr(group, "max", lambda values: [values[0] + 1, values[1]])
    with pytest.raises(FinalFailure, match=r"^train_dataset: the trainer ranks read different rows"):
        supervised._check_same_rows(group, batch)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    run = lazy_run(tmp_path / "run")
    assert train_in(run, StopAfter(4)) == 75
    checkpoint = run.checkpoints / "step_000004"
    (checkpoint / "resume" / "data.json").write_text('{"digest": "", "dealt": 4, "steps_per_epoch": 8}\n')
    with pytest.raises(Failure, match="another version"):
        SupervisedData(run).resume(4, checkpoint, starts_over=False)
