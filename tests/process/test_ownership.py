"""Who may write into a run's directory: processes of the newest attempt."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from areal_like.observe.writer import MetricWriter
from areal_like.process import ownership as ownership_module
from areal_like.process.errors import FinalFailure
from areal_like.process.identity import ATTEMPT, Identity
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run


def run_at(directory: Path, attempt: int) -> Run:
    (directory / "attempt.json").write_text(json.dumps({"attempt": attempt, "step": 0, "checkpoint": None}))
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
