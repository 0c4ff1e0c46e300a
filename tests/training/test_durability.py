"""A crash of the machine at any moment leaves a complete checkpoint, once there is one."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from areal_like.observe.writer import MetricWriter
from areal_like.process.atomic_file import fsync_path, write_atomic
from areal_like.process.checkpoint_files import complete_checkpoints, folder_name, resume_problem, write_manifest
from areal_like.process.run import Run, StartPoint, last_attempt
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.engine import TrainEngine
from areal_like.training.progress import TrainingProgress
from launcher.plan.build import build_plan
from launcher.runs.checkpoints import move_aside_after
from launcher.runs.run_files import write_start_point
from launcher.supervisor.checkpoint_search import CheckpointSearch
from launcher.supervisor.rollback import Rollback, roll_back
from launcher.supervisor.run_lock import lock_run
from tests.support.crash_record import Crashes, Record, everything, nothing, recording, some
from tests.support.planning import loaded
from tests.support.training_runs import ME, MEMORY, make_engine, make_run, model_folder, world

Read = TypeVar("Read")
KEEPS = {"nothing": nothing, "everything": everything, "some": some(1), "others": some(2)}


def remains(record: Record, folder: Path, read: Callable[[Path], Read]) -> Iterator[tuple[int, str, Read]]:
    """What `read` finds in those of every crash, with the number of operations before it; equal ones are read once."""
    crashes, known = Crashes(record), dict[str, Read]()
    for count in range(len(record.operations) + 1):
        for name, keep in KEEPS.items():
            target = folder / "remains"
            mark = crashes.write(target, count, keep)
            if mark not in known:
                known[mark] = read(target)
            shutil.rmtree(target)
            yield count, f"{name} survives a crash after operation {count}", known[mark]


def sound_steps(left: Path) -> tuple[list[int], str]:
    """The steps of the undamaged checkpoints, and what is wrong with the newest that is marked as complete."""
    found = complete_checkpoints(left / "checkpoints")
    problems = {step: resume_problem(path, with_hashes=True) or "" for step, path in found}
    newest = problems[found[-1][0]] if found else ""
    return [step for step, problem in problems.items() if not problem], "" if "weights alone" in newest else newest


def check(record: Record, folder: Path, expected: list[tuple[int, int]]) -> None:
    """`expected`: from so many operations on, the newest checkpoint is at least of this step."""
    for count, what, (steps, wrong) in remains(record, folder, sound_steps):
        least = max((step for begins, step in expected if count >= begins), default=-1)
        assert max(steps, default=-1) >= least, f"{what}: {steps}"
        assert not wrong, f"{what}: {wrong}"


def made(tmp_path: Path, *words: str) -> tuple[Run, TrainEngine]:
    model = model_folder(tmp_path, "llama")
    run = make_run(tmp_path / "run", "sft", f"model.path={model}", "weights.save_async=false", "recover.keep=1", *words)
    run.checkpoints.mkdir(exist_ok=True)
    return run, make_engine(model)


def write(run: Run, engine: TrainEngine, record: Record, *steps: int) -> list[tuple[int, int]]:
    """How many operations there were when each was complete. Step 4 is one that the saver keeps."""
    manager, progress, complete = CheckpointManager(run, world(), 100), TrainingProgress(run, ME, world()), []
    for step in steps:
        manager.write(step, CheckpointPurpose(True, step == 4), {"model": engine}, progress, {"controller.frame": b"g"})
        manager.wait()
        complete.append((len(record.operations), step))
    return complete


def test_every_crash_after_the_first_checkpoint_leaves_the_newest_complete_one(tmp_path):
    """Also while older ones are deleted, and where one is marked as kept after it was written."""
    run, engine = made(tmp_path)
    with recording(run.directory) as record:
        complete = write(run, engine, record, 2, 4, 6)
    assert {operation.kind for operation in record.operations} == {"write", "sync", "mkdir", "rename", "remove"}
    check(record, tmp_path, complete)


def test_a_checkpoint_that_is_kept_later_is_not_written_again(tmp_path):
    run, engine = made(tmp_path)
    manager, progress = CheckpointManager(run, world(), 100), TrainingProgress(run, ME, world())
    manager.write(2, CheckpointPurpose(True, False), {"model": engine}, progress)
    manager.wait()
    with recording(run.directory) as record:
        manager.write(2, manager.due(2, is_last=True), {"model": engine}, progress)
    assert [Path(each.path).name for each in record.operations] == [".kept", "step_000002"]
    assert (run.checkpoints / "step_000002" / ".kept").is_file() and not manager.due(2, is_last=True)
    check(record, tmp_path, [])


def test_resume_state_on_another_disk_is_as_durable(tmp_path):
    run, engine = made(tmp_path)
    states = run.directory / "states"
    states.mkdir()
    (run.directory / "resume").symlink_to(states)
    assert run.resume_states == states
    with recording(run.directory) as record:
        complete = write(run, engine, record, 2, 4)
    assert {operation.kind for operation in record.operations} >= {"symlink"}
    check(record, tmp_path, complete)


def test_folders_that_a_start_makes_are_not_lost_with_what_is_synced_in_them(tmp_path, monkeypatch):
    """Nothing of the folders of a run, of its checkpoints and of its resume states is there before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model, disk = model_folder(tmp_path, "llama"), tmp_path / "disk"
    engine = make_engine(model)
    disk.mkdir()
    roots = {"cluster": "new/runs", "saver": "second/kept", "recover": "third/states"}
    words = [f"{section}.fileroot={disk / root}" for section, root in roots.items()]
    words += ["trial_name=t", f"model.path={model}", "weights.save_async=false"]
    configuration = loaded("sft", *words, f"cluster.name_resolve.nfs_record_root={tmp_path / 'names'}")
    plan = build_plan(configuration)
    with recording(disk) as record:
        locked = lock_run(configuration, plan, "id of this test", False)
        locked.names.close()
        MEMORY.append(locked.run.memory)
        begun = len(record.operations)
        complete = write(locked.run, engine, record, 2)
    place = locked.run.directory.relative_to(disk)
    assert locked.run.resume_states is not None and not locked.run.checkpoints.resolve().is_relative_to(disk / "new")

    def read(left: Path) -> tuple[bool, list[int], str]:
        return ((left / place / "attempt.json").is_file(), *sound_steps(left / place))

    for count, what, (has_begun, steps, wrong) in remains(record, tmp_path, read):
        assert has_begun or count < begun, what
        assert steps == [2] or count < complete[0][0], what
        assert not wrong, f"{what}: {wrong}"


def test_a_rollback_that_crashes_loses_no_checkpoint(tmp_path):
    run, engine = made(tmp_path, "recover.keep=2")
    with recording(run.directory) as record:
        complete = write(run, engine, record, 2, 4)
        move_aside_after(run.directory, 2, attempt=2)
    last = len(record.operations)
    check(record, tmp_path, [complete[0]])
    assert last > complete[-1][0], "it was moved"


@pytest.mark.parametrize("damaged", [(), (6,)])
def test_a_rollback_that_crashes_goes_on_from_the_same_checkpoint(tmp_path, damaged):
    """`recover.skip_progress` moves all of them, also that from which the attempt begins."""
    run, engine = made(tmp_path, "recover.keep=3", "recover.skip_progress=true")
    with recording(run.directory) as record:
        write_start_point(run.directory, StartPoint(1, 0, None, owner=run.run_id))
        write(run, engine, record, 2, 4, 6)
        for step in damaged:
            (run.checkpoints / folder_name(step) / "model.safetensors").write_bytes(b"damaged")
        before = len(record.operations)
        back = rolled_back(run)
    begins_at = folder_name(4 if damaged else 6)
    assert back.checkpoint == run.checkpoints / "before-attempt-2" / begins_at

    def restart(left: Path) -> tuple[int, str]:
        start = left / "attempt.json"
        if start.is_file():  # its path leads to the run itself, not to what is left of it
            start.write_text(start.read_text().replace(str(run.directory), str(left)))
        again = rolled_back(replace(run, directory=left))
        assert again.checkpoint is None or again.checkpoint.is_dir()
        return again.step, "" if again.checkpoint is None else again.checkpoint.name

    for count, what, found in remains(record, tmp_path, restart):
        assert found == (0, begins_at) or count < before, f"{what}: {found}"


def rolled_back(run: Run) -> Rollback:
    """As the next start of the run does it."""
    search, attempt = CheckpointSearch(run), last_attempt(run.directory) + 1
    assert search.is_done(60)
    return roll_back(run, attempt, attempt, search.result())


@pytest.mark.parametrize("forgotten", ["a file", "the folder", "the mark"])
def test_the_record_finds_what_was_not_synced(tmp_path, forgotten):
    """A writer that forgets one sync is found, so that the tests above mean something."""
    root = tmp_path / "run" / "checkpoints"
    root.mkdir(parents=True)
    half = root / ".step_000002.half"
    with recording(tmp_path / "run") as record:
        (half / "resume").mkdir(parents=True)
        (half / "resume" / "state").write_bytes(b"all of it")
        write_manifest(half, 2)
        half.rename(root / "step_000002")
        fsync_path(root)
    left_out = {"a file": "state", "the folder": "checkpoints", "the mark": ".step_000002.half"}[forgotten]
    whole = record.operations
    check(record, tmp_path, [(len(whole), 2)])
    record.operations = [each for each in whole if (each.kind, os.path.basename(each.path)) != ("sync", left_out)]
    with pytest.raises(AssertionError, match="survives a crash after operation"):
        check(record, tmp_path, [(len(record.operations), 2)])


def test_a_file_that_is_replaced_has_the_old_or_the_new_content_after_any_crash(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with recording(folder) as record:
        write_atomic(folder / "attempt.json", "old")
        fsync_path(folder)
        first = len(record.operations)
        write_atomic(folder / "attempt.json", "new content")
    for count, what, text in remains(
        record, tmp_path, lambda left: (left / "attempt.json").is_file() and (left / "attempt.json").read_text()
    ):
        assert count < first or text in ("old", "new content"), what


def test_the_metrics_of_its_steps_are_as_durable_as_a_checkpoint(tmp_path):
    run, engine = made(tmp_path)

    def read(left: Path) -> tuple[bool, bytes]:
        file = left / "metrics" / f"{ME.file_name}.jsonl"
        return bool(complete_checkpoints(left / "checkpoints")), file.read_bytes() if file.is_file() else b""

    with recording(run.directory) as record:
        MetricWriter(run, ME).write(2, {"train/loss": 1.0})
        write(run, engine, record, 2)
    found = list(remains(record, tmp_path, read))
    for _, what, (is_complete, lines) in found:
        assert not is_complete or b'"train/loss":1.0' in lines, what
    assert any(is_complete for _, _, (is_complete, _) in found)
