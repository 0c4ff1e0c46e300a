"""A start that a process refuses leaves no run directory and no trial number."""

from pathlib import Path

import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.errors import Failure
from areal_like.process.run import StartPoint
from launcher.plan.build import build_plan
from launcher.runs.registry import register, registered_runs
from launcher.runs.run_files import write_start_point
from launcher.supervisor.discard import discard_unused_run, holds_no_work
from launcher.supervisor.lifecycle import RunEnding
from launcher.supervisor.run_lock import LockedRun, lock_run
from tests.support.planning import loaded

REFUSED = RunEnding("refused", 2, "train_dataset.path: row 1 has no 'answer'", is_complete=True)


class Started:
    """What is asked of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """As a start leaves it whose worker has refused the first row."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = tmp_path / "runs" / "own" / "r0001"
    for name in ("logs", "metrics", "checkpoints", "rollouts", "weights/v000000"):
        (made / name).mkdir(parents=True)
    for name in ("config.yaml", "run.json", "command.txt", "summary.json", "logs/episodes-0.log", "data.json"):
        (made / name).write_text("words")
    for name in ("rollouts/ledger.jsonl", "metrics.jsonl", "data.lock", "metrics/trainer-0.jsonl"):
        (made / name).touch()
    write_start_point(made, StartPoint(1, 0, None))
    register("own", "r0001", made)
    return made


def claimed(directory: Path, is_new: bool = True) -> LockedRun:
    return LockedRun(None, Started(directory), None, StartPoint(1, 0, None), (), is_new)  # type: ignore[arg-type]


def test_an_unused_run_is_removed_and_unregistered(directory):
    assert [run.directory for run in registered_runs()] == [directory]
    assert discard_unused_run(claimed(directory), REFUSED)
    assert not directory.exists() and not list(registered_runs())
    assert not list((directory.parents[2] / "state").rglob("*.json"))


@pytest.mark.parametrize(
    "ending",
    [
        RunEnding("failed", 1, "it died"),
        RunEnding("stopped", 75),
        RunEnding("done", 0),
        RunEnding("refused", 2, "episodes/0 failed (exit code 2)"),
    ],
)
def test_a_run_with_another_ending_or_a_log_is_kept(directory, ending):
    assert not discard_unused_run(claimed(directory), ending)
    assert (directory / "config.yaml").is_file()


def test_a_name_that_cannot_be_claimed_leaves_no_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    configuration = loaded("grpo", f"cluster.fileroot={tmp_path}", "cluster.name_resolve.nfs_record_root=/proc/nowhere")
    with pytest.raises((OSError, Failure, ConfigError)):
        lock_run(configuration, build_plan(configuration), "0", False)
    assert not [*tmp_path.glob("grpo-addition/*")]


def test_a_directory_that_existed_before_is_kept(directory):
    assert not discard_unused_run(claimed(directory, is_new=False), REFUSED)
    assert directory.is_dir()


def test_a_run_that_was_recovered_once_is_kept(directory):
    write_start_point(directory, StartPoint(2, 0, None))
    assert not discard_unused_run(claimed(directory), REFUSED)


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoints/step_000001/config.json", "metrics/trainer-0.jsonl", "metrics.jsonl", "rollouts/ledger.jsonl"),
        *("notes.txt", "results/mine.csv", "rollouts/step_000001.jsonl"),
    ],
)
def test_a_run_with_any_work_is_kept(directory, name):
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("work")
    assert not holds_no_work(directory)
    assert not discard_unused_run(claimed(directory), REFUSED)
    assert (directory / name).read_text() == "work"


def test_a_link_is_not_followed(directory, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (directory / "metrics" / "link").symlink_to(tmp_path / "elsewhere")
    assert not holds_no_work(directory)
