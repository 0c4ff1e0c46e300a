"""A trainer that was stalled while its run went on elsewhere writes and deletes nothing when it comes back."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.checkpoint_files import complete_checkpoints, resume_problem, write_manifest
from areal_like.process.errors import Failure
from areal_like.process.identity import ATTEMPT
from areal_like.process.run import Run, open_run
from areal_like.training import checkpoint as checkpoint_module
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.engine_snapshot import EngineSnapshot
from areal_like.training.progress import TrainingProgress
from tests.support.training_runs import ME, make_engine, make_run, model_folder, start_from, world


def made(tmp_path: Path) -> Run:
    model = model_folder(tmp_path, "llama")
    run = make_run(tmp_path / "run", "sft", f"model.path={model}", "weights.save_async=false", "recover.keep=1")
    run.checkpoints.mkdir(exist_ok=True)
    return run


def manager_of(run: Run) -> Callable[[int], None]:
    manager, engine = CheckpointManager(run, world(), 100), make_engine(Path(run.config.model.path))
    progress = TrainingProgress(run, ME, world())

    def write(step: int) -> None:
        manager.write(step, CheckpointPurpose(True, False), {"model": engine}, progress)
        manager.wait()

    return write


def begin_elsewhere(run: Run, attempt: int) -> Run:
    """As another launcher does."""
    (_, newest) = complete_checkpoints(run.checkpoints)[-1]
    return start_from(run, newest, int(newest.name.removeprefix("step_")), attempt=attempt)


@pytest.mark.parametrize("moment", ["before it begins", "while it is written", "before it is complete"])
def test_an_attempt_that_another_one_followed_changes_no_checkpoint(tmp_path, moment, monkeypatch):
    run = made(tmp_path)
    stale = manager_of(run)
    stale(2)

    def take_over(*_: object) -> None:
        manager_of(begin_elsewhere(run, 2))(4)

    def write_and_take_over(*words: Any) -> None:
        monkeypatch.setattr(checkpoint_module, "write_manifest", write_manifest)
        write_manifest(*words)
        take_over()

    write_folder = EngineSnapshot.write_folder

    def write_folder_and_take_over(*words: Any) -> None:  # which removes it
        monkeypatch.setattr(EngineSnapshot, "write_folder", write_folder)
        write_folder(*words)
        take_over()

    if moment == "before it begins":
        take_over()
    elif moment == "while it is written":
        monkeypatch.setattr(EngineSnapshot, "write_folder", write_folder_and_take_over)
    else:
        monkeypatch.setattr(checkpoint_module, "write_manifest", write_and_take_over)
    with pytest.raises(Failure, match=r"another launcher has begun attempt 2 of this run; attempt 1 writes nothing"):
        stale(3 if moment == "before it begins" else 4)
    found = complete_checkpoints(run.checkpoints)
    assert found[-1][0] == 4 and resume_problem(found[-1][1], with_hashes=True) is None
    assert json.loads((found[-1][1] / "resume" / "trainer.json").read_text())["attempt"] == 2


def test_an_attempt_that_comes_late_takes_no_later_start_point_for_its_own(tmp_path, monkeypatch):
    run = made(tmp_path)
    manager_of(run)(2)
    later = begin_elsewhere(run, 2)
    half = run.checkpoints / ".step_000003.2.half"
    half.mkdir()
    monkeypatch.setenv(ATTEMPT, "1")
    with pytest.raises(Failure, match=r"another launcher has begun attempt 2 of this run; attempt 1 writes nothing"):
        manager_of(later)
    assert half.is_dir(), "it is what attempt 2 writes"


@pytest.mark.slow
def test_a_stopped_process_that_continues_writes_nothing_into_the_run_of_another(tmp_path):
    run = made(tmp_path)
    command = [sys.executable, "-m", "tests.training.test_ownership", str(run.directory)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        ends = time.monotonic() + 120
        while not complete_checkpoints(run.checkpoints):
            assert process.poll() is None and time.monotonic() < ends
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        manager_of(begin_elsewhere(run, 2))(1_000_000)
        before = sorted(path.name for path in run.checkpoints.iterdir())
        os.kill(process.pid, signal.SIGCONT)
        errors = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode == 1 and "another launcher has begun attempt 2" in errors, errors
    after = {path.name for path in run.checkpoints.iterdir() if not path.name.startswith(".")}
    assert after == {name for name in before if not name.startswith(".")}
    assert resume_problem(run.checkpoints / "step_1000000", with_hashes=True) is None


if __name__ == "__main__":
    write_on = manager_of(open_run(Path(sys.argv[1])))
    for each in range(2, 100_000):
        write_on(each)
