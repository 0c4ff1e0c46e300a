"""Parts of a run in other folders: creation, resuming and removal."""

import errno
import os
from pathlib import Path

import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.checkpoint_files import checkpoint_problems, drop_resume_parts, write_manifest
from areal_like.process.run import Run
from areal_like.process.run_links import link_target, make_free_folder, other_roots
from areal_like.training.checkpoint_removal import discard, remove, remove_leftovers
from launcher.checks.resuming import kept_folder_warnings, moved_folder_problems
from launcher.plan.host import HostInfo
from launcher.plan.plan import RunDirectory
from launcher.runs.checkpoint_reader import read_checkpoint
from launcher.runs.linked_folders import create_links, remove_linked_folders
from launcher.supervisor.discard import holds_no_work
from launcher.supervisor.write_errors import write_error_text
from tests.support.planning import loaded, machine_with, plan_of

ROOTS = ("saver.fileroot=kept", "recover.fileroot=kept", "stats_logger.fileroot=tracked")


@pytest.fixture
def begun(tmp_path):
    """Its folders are laid out, and it has begun."""
    run = run_of(tmp_path, *ROOTS)
    create_links(run)
    (run.directory / "attempt.json").write_text("{}")
    return run


def run_of(root: Path, *words: str, name: str = "t") -> Run:
    config = loaded("sft", "trial_name=t", *words).config
    directory = root / "runs" / "sft-addition" / name
    directory.mkdir(parents=True)
    return Run(directory, config, "sft", "id", root, root)


def against(run: Run, *words: str) -> dict[str, str]:
    result = moved_folder_problems(loaded("sft", *words).config, *place_of(run))
    return {obstacle.key: obstacle.message for obstacle in result}


def place_of(run: Run) -> tuple[RunDirectory, HostInfo]:
    """What a plan knows of a run that continues."""
    return RunDirectory(str(run.directory), "t", "continues", ""), machine_with()._replace(directory=run.cwd)


def test_only_other_folders_are_linked(tmp_path):
    assert other_roots(loaded("sft").config, tmp_path) == {}
    same = ("saver.fileroot=runs/../runs/", f"recover.fileroot={tmp_path}/runs", "evaluator.fileroot=/else")
    assert other_roots(loaded("sft", *same).config, tmp_path) == {"evaluator": Path("/else")}


def test_a_run_of_one_folder_has_no_links(tmp_path):
    run = run_of(tmp_path)
    assert create_links(run) == ()
    assert list(run.directory.iterdir()) == []
    assert (run.resume_states, run.trackers, run.evaluations) == (None, run.directory, None)


def test_a_folder_that_is_taken_is_not_shared(begun, tmp_path):
    """By the trial of the same name that was replaced, say."""
    assert link_target(begun.directory, "checkpoints") == tmp_path / "kept" / "sft-addition" / "t" / "checkpoints"
    again = run_of(tmp_path, *ROOTS, name="again")
    assert f"saver.fileroot: checkpoints -> {tmp_path}/kept/sft-addition/t.2/checkpoints" in create_links(again)
    assert again.resume_states == tmp_path / "kept" / "sft-addition" / "t.2" / "resume"
    assert again.trackers == tmp_path / "tracked" / "sft-addition" / "t.2" / "trackers"


def test_a_run_with_its_links_is_resumed(begun):
    assert against(begun, *ROOTS) == {}


def test_a_moved_or_missing_linked_folder_prevents_resuming(begun, tmp_path):
    result = against(begun, *ROOTS, "saver.fileroot=other", "evaluator.fileroot=other")
    assert set(result) == {"saver.fileroot", "evaluator.fileroot"}
    assert all(reason.endswith("leave it out") for reason in result.values())
    (tmp_path / "kept").rename(tmp_path / "away")
    assert "mount that disk" in against(begun, *ROOTS)["saver.fileroot"]


def test_omitted_folder_keys_keep_the_linked_folders(begun, tmp_path):
    assert against(begun) == {}
    kept = [warning.text() for warning in kept_folder_warnings(loaded("sft").config, *place_of(begun))]
    assert f"recover.fileroot: this run has its resume in {begun.resume_states}, and keeps them there" in kept
    assert len(kept) == 3 and not list(kept_folder_warnings(loaded("sft", *ROOTS).config, *place_of(begun)))


def test_a_missing_disk_is_the_only_problem_reported(begun, tmp_path):
    (begun.directory / "config.yaml").write_text("experiment_name: sft-addition\n")
    (tmp_path / "kept").rename(tmp_path / "away")
    gone = f"{begun.directory}/checkpoints leads to {tmp_path}/kept/sft-addition/t/checkpoints"
    host = machine_with()._replace(directory=tmp_path)
    plan = plan_of("sft", f"resume={begun.directory}", host=host)
    assert {each.key for each in plan.cannot_start} == {"saver.fileroot", "recover.fileroot"}
    with pytest.raises(ConfigError, match="mount that disk") as refused:
        read_checkpoint(begun.directory, None, lambda folder: None, print)
    assert gone in refused.value.text() and "no checkpoint" not in refused.value.text()


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("/proc/foo", "saver.fileroot"),
        ("/proc/foo/sft-addition/t/checkpoints", "saver.fileroot"),
        ("/kept", "recover.fileroot"),
        ("/names/user", "cluster.name_resolve.nfs_record_root"),
        ("/runs/sft-addition", "cluster.fileroot"),
    ],
)
def test_an_unwritable_linked_folder_is_named_by_its_key(place, key):
    roots = ("saver.fileroot=/proc/foo", "recover.fileroot=/kept/below", "fileroot=/runs")
    config = loaded("sft", *roots, "cluster.name_resolve.nfs_record_root=/names").config
    error = OSError(errno.ENOENT, "No such file or directory", place)
    messages = f"{key}: {place}: No such file or directory; name another folder"
    assert write_error_text(error, config, "/runs/sft-addition/t") == messages
    full = write_error_text(OSError(errno.ENOSPC, "No space left on device"), config, "/runs/sft-addition/t")
    assert full.startswith("cluster.fileroot: /runs/sft-addition/t: No space") and "make room there" in full


def test_a_discarded_start_removes_its_linked_folders(begun, tmp_path):
    assert holds_no_work(begun.directory)
    (begun.resume_states / "state").write_text("something")
    assert not holds_no_work(begun.directory)
    remove_linked_folders(begun.directory)
    assert [path.name for path in (tmp_path / "kept").rglob("*")] == ["sft-addition"]


def test_a_path_below_a_file_is_refused_by_its_key(tmp_path):
    (tmp_path / "file").write_text("")
    host = machine_with()._replace(directory=tmp_path)
    plan = plan_of("sft", f"saver.fileroot={tmp_path}/file/below", host=host)
    assert [need.key for need in plan.needs] == ["saver.fileroot"]


@pytest.fixture
def checkpoint(begun):
    """One whose resume state is on another disk."""
    folder = begun.checkpoints / "step_000001"
    folder.mkdir()
    (folder / "resume").symlink_to(make_free_folder(begun.resume_states / folder.name))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "resume" / "trainer.json").write_bytes(b"{}")
    write_manifest(folder, 1)
    return folder


def test_files_on_another_disk_are_in_the_manifest(checkpoint, begun):
    assert checkpoint_problems(checkpoint) == []
    (begun.resume_states / "step_000001" / "trainer.json").write_bytes(b"[]")
    assert checkpoint_problems(checkpoint) == ["step_000001/resume/trainer.json has other content than was written"]


def test_discarding_removes_checkpoints_on_another_disk(checkpoint, begun):
    remove(checkpoint, begun.resume_states)
    assert list(begun.checkpoints.iterdir()) == list(begun.resume_states.iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed_on_another_disk(checkpoint, begun):
    checkpoint.rename(checkpoint.with_name(".step_000001.half"))
    remove_leftovers(begun.checkpoints, begun.resume_states)
    assert list(begun.checkpoints.iterdir()) == list(begun.resume_states.iterdir()) == []


def test_what_a_link_of_the_users_leads_to_stays(checkpoint, begun, tmp_path):
    """A checkpoint that is a link to one of another run, and a resume state that is."""
    (other := tmp_path / "other" / "step_000002" / "resume").mkdir(parents=True)
    (other / "state").touch()
    whole, state = begun.checkpoints / "step_000002", begun.checkpoints / "step_000003"
    whole.symlink_to(other.parent)
    state.mkdir()
    (state / "resume").symlink_to(other)
    (begun.checkpoints / ".step_000004.1.half").symlink_to(other)
    for folder in (whole, state):
        remove(folder, begun.resume_states)
    remove_leftovers(begun.checkpoints, begun.resume_states)
    assert (other / "state").is_file() and list(begun.checkpoints.iterdir()) == [checkpoint]


def test_a_kept_checkpoint_loses_its_resume_state_on_another_disk(checkpoint, begun):

    for path in drop_resume_parts(checkpoint):
        discard(path, begun.resume_states)
    assert list(begun.resume_states.iterdir()) == [] and checkpoint_problems(checkpoint) == []
    assert not (checkpoint / "resume").is_symlink() and (checkpoint / "model.safetensors").is_file()


def test_what_another_process_removes_at_the_same_time_is_gone_as_well(tmp_path, monkeypatch):
    folder = tmp_path / ".step_000003.gone"
    for name in ("resume/a", "resume/b", "c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    unlink = os.unlink

    def unlinked_twice(path, *, dir_fd=None):
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlinked_twice)
    discard(folder, None)
    assert not folder.exists()
    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
        folder.mkdir()
        (folder / "d").touch()
        with pytest.raises(PermissionError):
            discard(folder, None)
