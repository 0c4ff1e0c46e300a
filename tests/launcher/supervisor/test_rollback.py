"""The checkpoint and the step from which an attempt starts."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.process import checkpoint_files
from areal_like.process.checkpoint_files import attempt_of, write_manifest
from areal_like.process.errors import Failure
from areal_like.process.run import Run, StartPoint
from launcher.runs.run_files import write_start_point
from launcher.supervisor import rollback
from launcher.supervisor.checkpoint_search import CheckpointSearch
from launcher.supervisor.lifecycle import Lifecycle, WaitLimits
from launcher.supervisor.restart_policy import RestartPolicy
from launcher.supervisor.rollback import PendingRollback, Rollback, roll_back
from launcher.supervisor.roster import Roster
from launcher.supervisor.supervisor import Supervisor
from launcher.supervisor.taken_over import taken_over_ending
from tests.ring.server import make_run


def run_in(folder: Path, skip_progress: bool = False) -> Run:
    config = SimpleNamespace(recover=SimpleNamespace(skip_progress=skip_progress))
    return Run(folder, config, "sft", "an id of no run", folder, folder)


def back_to_newest(run: Run, attempt: int, began: int, at_most: int | None = None) -> Rollback:
    search = CheckpointSearch(run, at_most)
    assert search.is_done(60)
    return roll_back(run, attempt, began, search.result())


def checkpoint(run: Run, step: int, attempt: int = 1) -> Path:
    folder = run.checkpoints / f"step_{step:06}"
    (folder / "resume").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "resume" / "trainer.json").write_text(json.dumps({"attempt": attempt}))
    write_manifest(folder, step)
    return folder


def begins(run: Run) -> tuple[int, str | None]:
    """As the processes of the attempt read it."""
    start = run.start_point()
    return start.step, None if start.checkpoint is None else str(start.checkpoint.relative_to(run.directory))


DAMAGES: dict[str, tuple[str, Any, str]] = {
    "changed": ("resume/trainer.json", lambda file: file.write_bytes(b" " + file.read_bytes()[1:]), "other content"),
    "cut": ("model.safetensors", lambda file: file.write_bytes(b"weigh"), "has 5 bytes instead of 7"),
    "missing": ("model.safetensors", lambda file: file.unlink(), "is missing"),
    "no manifest": ("manifest.json", lambda file: file.unlink(), "cannot be read"),
    "half a manifest": ("manifest.json", lambda file: file.write_text('{"parts": {'), "cannot be read"),
}


def disk_fails(monkeypatch: pytest.MonkeyPatch, number: int, *names: str) -> None:
    """For the files of these checkpoints; all others are read."""
    whole = checkpoint_files.hash_of

    def read(file: Path, on_read: checkpoint_files.OnRead = lambda _size: None) -> str:
        if any(name in file.parts for name in names):
            raise OSError(number, os.strerror(number), str(file))
        return whole(file, on_read)

    monkeypatch.setattr(checkpoint_files, "hash_of", read)


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EACCES])
def test_a_checkpoint_that_the_disk_cannot_read_is_named_and_an_older_one_used(tmp_path, monkeypatch, number):
    run = run_in(tmp_path)
    for step in (2, 4):
        checkpoint(run, step)
    disk_fails(monkeypatch, number, "step_000004")
    back = back_to_newest(run, attempt=2, began=2)

    assert begins(run) == (2, "checkpoints/step_000002")
    assert f"step_000004/model.safetensors cannot be read ({os.strerror(number)})" in back.messages[0]
    assert (run.checkpoints / "before-attempt-2" / "step_000004").is_dir()


def no_file_can_be_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    (run.checkpoints / "step_000004" / "model.safetensors").unlink()
    disk_fails(monkeypatch, errno.ESTALE, "step_000002")
    return "step_000002/model.safetensors cannot be read (Stale file handle)"


def no_folder_can_be_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    whole = os.listdir

    def list_folder(folder: Path) -> list[str]:
        if folder == run.checkpoints:
            raise OSError(errno.ESTALE, "Stale file handle", str(folder))
        return whole(folder)

    monkeypatch.setattr(os, "listdir", list_folder)
    return f"Stale file handle: '{run.checkpoints}'"


@pytest.mark.parametrize("fails", [no_file_can_be_read, no_folder_can_be_listed])
def test_a_run_does_not_start_over_because_its_disk_is_away(tmp_path, monkeypatch, fails):
    """One checkpoint is damaged, and the other one may be whole."""
    run = run_in(tmp_path)
    for step in (2, 4):
        checkpoint(run, step)
    back_to_newest(run, attempt=2, began=2)
    text = fails(run, monkeypatch)
    search = CheckpointSearch(run)
    assert search.is_done(60)
    limits = WaitLimits(60.0, "rollout.setup_timeout", 1.0)
    ending = PendingRollback(search, "trainer/0 ended").ending(run, 3, limits, "auto")
    assert ending is not None and (ending.outcome, ending.code) == ("failed", 1)
    assert "see whether the disk answers" in ending.message and text in ending.message


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_an_older_one_used(tmp_path, damage):
    run = run_in(tmp_path)
    for step in (2, 4, 6):
        checkpoint(run, step)
    part, harm, message = DAMAGES[damage]
    harm(run.checkpoints / "step_000006" / part)
    back = back_to_newest(run, attempt=2, began=2)

    assert (back.step, begins(run)) == (4, (4, "checkpoints/step_000004"))
    assert run.start_point().is_checked, "the trainer need not read it again"
    messages = back.messages[0]
    assert (
        messages.startswith("the checkpoint of step 6 is skipped: ")
        and f"step_000006/{part}" in messages
        and message in messages
    )
    assert (run.checkpoints / "before-attempt-2" / "step_000006").is_dir()


def test_new_checkpoints_count_after_a_rollback_past_a_damaged_one(tmp_path):
    """Each renews `recover.retries`, also where its step is below that of the damaged one."""
    run, policy = make_run(tmp_path / "run"), RestartPolicy("auto", 1)
    for folder in (run.logs, run.metrics):
        folder.mkdir()
    for step in (20, 40):
        checkpoint(run, step)
    (run.checkpoints / "step_000040" / "model.safetensors").write_bytes(b"WEIGHTS")
    agent: Any = SimpleNamespace(samples=list, cpu_seconds=dict)
    names: Any = None
    limits = WaitLimits(60.0, "rollout.setup_timeout", 1.0)
    supervisor: Any = Supervisor(
        *(run, Roster([], agent), names, limits, policy, StartPoint(1, 0, None), print, Lifecycle())
    )
    supervisor._check_progress(at_once=True)
    assert policy.decide("trainer/0", -9, ready=True, first=True).kind == "recover"

    supervisor.attempt, search = 2, CheckpointSearch(run)
    supervisor._pending = PendingRollback(search, "trainer/0 ended")
    assert search.is_done(60) and supervisor._check_rollback() is None and supervisor._pending is None
    checkpoint(run, 25, attempt=2)
    supervisor._check_progress(at_once=True)
    supervisor._watchdog.close()
    assert policy.decide("trainer/0", -9, ready=True, first=False).kind == "recover"


def test_if_all_checkpoints_are_damaged_the_run_starts_over_and_names_them(tmp_path):
    run = run_in(tmp_path)
    for step in (2, 4):
        (checkpoint(run, step) / "model.safetensors").write_bytes(b"WEIGHTS")
    back = back_to_newest(run, attempt=2, began=2)

    assert back[:2] == (0, None)
    assert ["step 4" in back.messages[0], "step 2" in back.messages[1]] == [True, True]


def test_a_requested_step_limits_the_chosen_checkpoint(tmp_path):
    run = run_in(tmp_path)
    for step in (2, 4, 6):
        checkpoint(run, step)

    assert back_to_newest(run, attempt=2, began=2, at_most=4).step == 4


def test_skip_progress_counts_from_0_with_the_checkpoints_weights(tmp_path):
    run = run_in(tmp_path, skip_progress=True)
    checkpoint(run, 6)
    back = back_to_newest(run, attempt=2, began=2)

    assert begins(run) == (0, "checkpoints/before-attempt-2/step_000006")
    assert any("recover.skip_progress" in message for message in back.messages)


def test_a_recovery_does_not_skip_again(tmp_path):
    run = run_in(tmp_path, skip_progress=True)
    checkpoint(run, 6)
    back_to_newest(run, attempt=2, began=2)
    assert run.skips("progress")

    again = back_to_newest(run, attempt=3, began=2)
    assert (again.step, begins(run)) == (0, (0, "checkpoints/before-attempt-2/step_000006")), (
        "this attempt has written none"
    )
    assert run.skips("progress")

    checkpoint(run, 2, attempt=3)
    own = back_to_newest(run, attempt=4, began=2)
    assert (own.step, begins(run)) == (2, (2, "checkpoints/step_000002"))
    assert not run.skips("progress")

    new_command = back_to_newest(run, attempt=5, began=5)
    assert new_command.step == 0 and run.skips("progress")


def test_without_skip_progress_steps_continue(tmp_path):
    run = run_in(tmp_path)
    checkpoint(run, 6)

    assert back_to_newest(run, attempt=2, began=2) == Rollback(6, run.checkpoints / "step_000006", ())
    assert not run.skips("progress")


def test_a_checkpoint_records_the_attempt_that_wrote_it(tmp_path):
    assert attempt_of(checkpoint(run_in(tmp_path), 4, attempt=3)) == 3
    assert attempt_of(tmp_path / "none") == 0


def test_a_launcher_has_lost_its_run_to_another_one_that_began_the_same_attempt(tmp_path):
    run = run_in(tmp_path)
    back_to_newest(run, attempt=2, began=2)
    assert taken_over_ending(run, 2) is None
    write_start_point(tmp_path, StartPoint(2, 0, None, owner="another id of no run"))
    ending = taken_over_ending(run, 2)
    assert ending is not None and ending.outcome == "lost" and "begun attempt 2 of this run" in ending.message


def test_a_rollback_leaves_records_alone_that_living_servers_write(tmp_path, monkeypatch):
    """Their halves are renamed at any moment, also between a look at the folder and the removal."""
    kept = {"segments-server-0.json", ".segments-server-0.json.7-ab12.half"}
    for name in (*kept, "sent", "gone"):
        (tmp_path / name).touch()
    (tmp_path / "v000004").mkdir()
    unlink = Path.unlink

    def meanwhile(path: Path, missing_ok: bool = False) -> None:
        if path.name == "gone":
            unlink(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", meanwhile)
    rollback._empty(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_the_directory_is_read_only_once_the_search_has_ended(tmp_path):
    """Its disk may not answer, and the launcher looks after processes meanwhile."""
    is_done: list[bool] = []
    search: Any = SimpleNamespace(is_done=lambda: bool(is_done), late_text=lambda *_: None)
    pending, limits = PendingRollback(search, "trainer/0 ended"), WaitLimits(60.0, "rollout.setup_timeout", 1.0)
    assert pending.ending(run_in(tmp_path), 2, limits, "auto") is None, "there is no start point to read"
    is_done.append(True)
    back_to_newest(run_in(tmp_path), attempt=2, began=2)
    ending = pending.ending(run_in(tmp_path), 2, limits, "auto")
    assert ending is not None and ending.outcome == "lost"


@pytest.mark.parametrize("stalls_after", ["its first move", "its last move", "the sync of the start point"])
def test_a_launcher_that_stalls_while_it_rolls_back_leaves_its_successor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalls_after: str
):
    run = run_in(tmp_path)
    for step in (2, 4, 6):
        checkpoint(run, step)
    (run.weights / "v000007").mkdir(parents=True)
    moves, move, sync, starts = 0, Path.rename, os.fsync, tmp_path / "attempt.json"
    others = json.dumps(StartPoint(2, 6, None, owner="another id of no run")._asdict())

    def moved(path: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if stalls_after == ("its first move" if moves == 1 else "its last move"):
            starts.write_text(others)
        return move(path, target)

    def synced(file: int) -> None:
        sync(file)
        if stalls_after == "the sync of the start point":
            starts.write_text(others)

    monkeypatch.setattr(Path, "rename", moved)
    monkeypatch.setattr(os, "fsync", synced)
    with pytest.raises(Failure, match=r"another launcher has begun attempt 2 of this run; .* writes nothing more"):
        back_to_newest(run, attempt=2, began=2, at_most=2)
    assert moves == {"its first move": 1, "its last move": 2}.get(stalls_after, 0)
    assert starts.read_text() == others
    assert (run.weights / "v000007").is_dir()
