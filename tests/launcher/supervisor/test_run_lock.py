"""Two launchers never begin the same attempt, however long one of them reads its checkpoint."""

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.discovery import NameStore, name_store_for
from areal_like.process import checkpoint_files
from areal_like.process.errors import Failure
from areal_like.process.run import StartPoint
from launcher.plan.build import build_plan
from launcher.runs.registry import LAUNCHER
from launcher.runs.run_files import write_start_point
from launcher.supervisor import run_lock
from tests.support.planning import loaded


def stopped_run(tmp_path: Path) -> tuple[Loaded, Path]:
    """Its configuration, which resumes it, and its directory."""
    words = (f"cluster.fileroot={tmp_path}", f"cluster.name_resolve.nfs_record_root={tmp_path / 'names'}")
    configuration = loaded("grpo", *words, "trial_name=t", "recover.mode=auto")
    directory = tmp_path / "grpo-addition" / "t"
    checkpoint = directory / "checkpoints" / "step_000002"
    (checkpoint / "resume").mkdir(parents=True)
    (checkpoint / "resume" / "state").write_text("state")
    checkpoint_files.write_manifest(checkpoint, 2)
    (directory / "weights").mkdir()
    (directory / "weights" / "sent").touch()
    write_start_point(directory, StartPoint(1, 0, None, owner="earlier"))
    return configuration, directory


@pytest.mark.parametrize("meanwhile", ["another launcher begins that attempt", "its name is lost"])
def test_a_launcher_whose_run_is_taken_over_while_it_reads_a_checkpoint_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    configuration, directory = stopped_run(tmp_path)
    plan, stores, whole = build_plan(configuration), [], checkpoint_files.hash_of

    def store(*given: Any) -> NameStore:
        stores.append(name_store_for(*given))
        return stores[-1]

    def slowly(file: Path, on_read: checkpoint_files.OnRead = lambda _size: None) -> str:
        if meanwhile == "its name is lost":
            stores[0].lost[LAUNCHER] = "it is held by pid 7 of elsewhere"
        else:
            write_start_point(directory, StartPoint(2, 2, directory / "checkpoints" / "step_000002", owner="other"))
        return whole(file, on_read)

    monkeypatch.setattr(run_lock, "name_store_for", store)
    monkeypatch.setattr(checkpoint_files, "hash_of", slowly)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as refused:
        run_lock.lock_run(configuration, plan, "own", False)
    why = (
        "another launcher has begun attempt 2" if "begins" in meanwhile else "has lost the name of its run (it is held"
    )
    assert f"while its checkpoint was read, {'' if 'begins' in meanwhile else 'this launcher '}{why}" in str(
        refused.value
    )
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    start = directory / "attempt.json"
    assert {**after, start: b""} == {**before, start: b""}


@pytest.mark.parametrize("clears", [True, False])
def test_a_store_of_names_that_does_not_answer_does_not_keep_the_launcher(caplog: Any, clears: bool):
    answers, done = threading.Event(), []

    def hang() -> None:
        answers.wait(10)
        done.append("hang")

    names: Any = SimpleNamespace(prefix="me/own/r0001", holds=lambda name: True, clear=hang, close=hang)
    run: Any = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(name_resolve=SimpleNamespace(ttl_s=0.1))))
    plan: Any = None
    run_lock.LockedRun(plan, run, names, StartPoint(1, 0, None), ()).release(clears)
    assert not done and "the names below me/own/r0001 have not answered for 0.1 s" in caplog.text
    answers.set()


@pytest.mark.parametrize("holds", [True, False])
def test_at_its_end_a_launcher_clears_the_names_of_its_run_unless_another_one_has_it_by_now(holds: bool):
    done: list[str] = []
    names: Any = SimpleNamespace(
        prefix="me/own/r0001",
        holds=lambda name: holds and name == "launcher/0",
        clear=lambda: done.append("clear"),
        close=lambda: done.append("close"),
    )
    run: Any = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(name_resolve=SimpleNamespace(ttl_s=60))))
    plan: Any = None
    run_lock.LockedRun(plan, run, names, StartPoint(1, 0, None), ()).release()
    assert done == (["clear", "close"] if holds else ["close"])


def test_a_fault_of_the_store_of_names_at_the_end_is_a_warning(caplog: Any):
    def fail() -> None:
        raise OSError(116, "Stale file handle")

    names: Any = SimpleNamespace(prefix="me/own/r0001", holds=lambda name: True, clear=fail, close=fail)
    run: Any = SimpleNamespace(config=SimpleNamespace(cluster=SimpleNamespace(name_resolve=SimpleNamespace(ttl_s=60))))
    plan: Any = None
    run_lock.LockedRun(plan, run, names, StartPoint(1, 0, None), ()).release()
    assert "stay until this process ends: [Errno 116] Stale file handle" in caplog.text


def test_a_start_that_cannot_read_its_checkpoints_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    configuration, directory = stopped_run(tmp_path)

    def fails(file: Path, on_read: checkpoint_files.OnRead = lambda _size: None) -> str:
        raise OSError(errno.ESTALE, "Stale file handle", str(file))

    plan = build_plan(configuration)
    monkeypatch.setattr(checkpoint_files, "hash_of", fails)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(Failure, match=r"no checkpoint of the run can be read.*step_000002/resume/state cannot be read"):
        run_lock.lock_run(configuration, plan, "own", False)
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
