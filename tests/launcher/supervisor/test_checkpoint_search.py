"""A large checkpoint is read before an attempt begins; the launcher serves signals and ended processes meanwhile."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from areal_like.process import checkpoint_files
from areal_like.process.errors import Failure
from areal_like.process.run import Run
from launcher.supervisor.checkpoint_search import CheckpointSearch, SearchCancelled
from tests.support.fake_runs import leftover_processes, start_fake_run

REPORTS = {"launcher.supervisor.supervisor.REPORT_S": 0.1}


def checking(tmp_path, **more):
    """A run whose trainer was killed, and whose checkpoint is being read."""
    held = tmp_path / "held"
    held.touch()
    faults = {"trainer/0 1.1": {"step": 3, "do": "kill"}}
    run = start_fake_run(tmp_path, faults=faults, hold_hashes=str(held), constants=REPORTS, **more)
    run.until_output("checking step_000002 before it is loaded: ")
    return run, held


def test_a_stop_while_a_checkpoint_is_checked_ends_at_once(tmp_path):
    run, _ = checking(tmp_path)
    os.kill(run.process.pid, signal.SIGTERM)
    ended = run.wait()
    assert (ended.code, ended.summary["outcome"]) == (75, "stopped"), ended
    assert "the newest checkpoint is of step 2" in ended.err
    assert leftover_processes(tmp_path) == {}


def test_a_server_that_dies_while_a_checkpoint_is_checked_is_replaced(tmp_path):
    run, held = checking(tmp_path)
    run.kill("server/0")
    run.until("logs/server-0.attempt-2.log")
    held.unlink()
    ended = run.wait()
    assert (ended.code, ended.steps()) == (0, [1, 2, 3, 4, 5, 6]), ended
    assert "attempt 2 resumes from step 2" in ended.out


def test_a_resume_with_only_damaged_checkpoints_is_refused_and_changes_nothing(tmp_path):
    run = start_fake_run(tmp_path, "trial_name=t", steps=2)
    assert run.wait().code == 0
    (run.directory / "checkpoints" / "step_000002" / "resume" / "state").write_text("!")
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    for words, key in (
        (("resume=t", "total_train_steps=4"), "resume"),
        (("trial_name=t", "recover.mode=resume"), "recover.mode"),
    ):
        refused = start_fake_run(tmp_path, *words).wait()
        assert refused.code == 2 and f"\n{key}" in f"\n{refused.err}", refused
        assert "has no undamaged checkpoint" in refused.err and "step_000002/resume/state has other" in refused.err
    assert before == {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}


@pytest.fixture
def held_search(tmp_path, monkeypatch):
    """A search that has reached its first block, and what lets it read that."""
    folder = tmp_path / "checkpoints" / "step_000002"
    (folder / "resume").mkdir(parents=True)
    (folder / "resume" / "state").write_bytes(b"all of it")
    checkpoint_files.write_manifest(folder, 2)
    monkeypatch.setattr(checkpoint_files, "BLOCK_BYTES", 1)
    reached, may_go_on = threading.Event(), threading.Event()
    original = CheckpointSearch._on_read

    def wait(self, size):
        reached.set()
        may_go_on.wait(60)
        original(self, size)

    monkeypatch.setattr(CheckpointSearch, "_on_read", wait)
    search = CheckpointSearch(Run(tmp_path, SimpleNamespace(), "sft", "1", tmp_path, tmp_path))
    assert reached.wait(60) and not search.is_done()
    yield search, may_go_on
    may_go_on.set()
    assert search.is_done(60)


def test_a_disk_that_does_not_answer_ends_the_wait_for_a_checkpoint(held_search):
    search, _ = held_search
    with pytest.raises(
        Failure, match=r"rollout.setup_timeout: checking step_000002 before .* nothing was read for 0.1 s"
    ):
        search.wait(0.1, "rollout.setup_timeout", print)


def test_a_cancelled_search_ends_at_its_next_block(held_search):
    search, may_go_on = held_search
    search.cancel()
    may_go_on.set()
    assert search.is_done(60) and "0.0 of 0.0 GB" in search.progress_text()
    with pytest.raises(SearchCancelled):
        search.result()
