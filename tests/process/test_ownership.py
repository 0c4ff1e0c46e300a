"""Who may write into a run's directory: processes of the newest attempt."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from areal_like.observe.tracker_samples import Extras, ExtrasWriter
from areal_like.observe.writer import MetricWriter
from areal_like.process import ownership as ownership_module
from areal_like.process.errors import FinalFailure
from areal_like.process.identity import ATTEMPT, RUN_ID, Identity
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run


def run_at(directory: Path, attempt: int, **more: str) -> Run:
    (directory / "attempt.json").write_text(json.dumps({"attempt": attempt, "step": 0, "checkpoint": None, **more}))
    return Run(directory, None, "sft", "abc", directory, directory)


def test_a_process_of_an_earlier_attempt_writes_no_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv(ATTEMPT, "1")
    writer = MetricWriter(run_at(tmp_path, 1), Identity("trainer", 0))
    writer.write(1, {"train/loss": 1.0})
    run_at(tmp_path, 2)
    with pytest.raises(FinalFailure, match="launcher has begun attempt 2 of this run; attempt 1 writes nothing"):
        writer.write(2, {"train/loss": 1.0})
    assert [json.loads(line)["step"] for line in writer.path.read_text().splitlines()] == [1]


def test_a_process_that_was_started_by_hand_belongs_to_the_newest_attempt(tmp_path, monkeypatch):
    monkeypatch.delenv(ATTEMPT, raising=False)
    writer = MetricWriter(run_at(tmp_path, 3), Identity("trainer", 0))
    writer.write(1, {"train/loss": 1.0})
    run_at(tmp_path, 4)
    with pytest.raises(FinalFailure, match="attempt 3 writes nothing"):
        writer.write(2, {"train/loss": 1.0})


def test_of_two_launchers_with_the_same_attempt_the_processes_of_the_first_write_nothing_more(tmp_path, monkeypatch):
    """Such as when one was cut off from the names and rolled back while the other one started."""
    monkeypatch.setenv(ATTEMPT, "2")
    monkeypatch.setenv(RUN_ID, "first")
    first = MetricWriter(run_at(tmp_path, 2, owner="first"), Identity("trainer", 0))
    first.write(1, {"train/loss": 1.0})
    monkeypatch.setenv(RUN_ID, "second")
    second = MetricWriter(run_at(tmp_path, 2, owner="second"), Identity("trainer", 0))
    with pytest.raises(
        FinalFailure, match="has begun attempt 2 of this run; that of this launcher, of the same number"
    ):
        first.write(2, {"train/loss": 1.0})
    second.write(3, {"train/loss": 1.0})
    assert [json.loads(line)["step"] for line in second.path.read_text().splitlines()] == [1, 3]


def test_a_process_of_an_earlier_attempt_writes_no_samples(tmp_path):
    run = run_at(tmp_path, 1)
    writer = ExtrasWriter(run, Identity("trainer", 0))
    writer.write(Extras(1, "train", [{"a": 1}], {}))
    run_at(tmp_path, 2)
    with pytest.raises(FinalFailure, match="launcher has begun attempt 2 of this run; attempt 1 writes nothing"):
        writer.write(Extras(2, "train", [{"a": 1}], {}))
    (file,) = (tmp_path / "samples").iterdir()
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1]


def test_what_was_read_counts_for_less_than_a_stall(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(ownership_module, "time", SimpleNamespace(monotonic=lambda: now))
    ownership = Ownership(run_at(tmp_path, 1), 1, valid_s=0.5)
    ownership.require()
    run_at(tmp_path, 2)
    now += 0.4
    ownership.require()
    now += 5.0
    with pytest.raises(FinalFailure):
        ownership.require()
