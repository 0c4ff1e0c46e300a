"""A running run is not started a second time, wherever the second launcher looks for the names of the run."""

import os
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError
from areal_like.discovery import NameStore, file_name_store
from areal_like.discovery.owner import this_process
from launcher.plan.build import build_plan
from launcher.runs.registry import LAUNCHER, OWNER, is_running
from launcher.supervisor.run_lock import LockedRun, lock_run
from launcher.supervisor.taken_over import lost_name_ending
from tests.discovery.test_names import eventually
from tests.support.planning import loaded

TTL_S = 0.5


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "runs" / "own" / "t"


def configuration(*words: str) -> Loaded:
    own = ("cluster.fileroot=runs", "experiment_name=own", "trial_name=t", "recover.mode=auto")
    return loaded("grpo", *own, f"cluster.name_resolve.ttl_s={TTL_S}", *words)


def lock(*words: str, replace: bool = False) -> LockedRun:
    asked = configuration(*words)
    return lock_run(asked, build_plan(asked, replace_existing=replace), "id", replace)


def contents(directory: Path) -> dict[Path, bytes]:
    """Without what the launcher renews."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path: path.read_bytes() for path in files}


def elsewhere(directory: Path, monkeypatch: pytest.MonkeyPatch) -> NameStore:
    """The claim of a launcher on another machine."""
    with monkeypatch.context() as patched:
        far = this_process()._replace(host="other", boot="another-boot")
        patched.setattr("areal_like.discovery.files.this_process", lambda: far)
        claim = file_name_store(directory, OWNER, "pid 7", TTL_S, is_private=False)
    claim.add(LAUNCHER, "")
    return claim


@pytest.mark.parametrize("other", ["user", "folder of names", "kind of names"])
def test_a_running_run_is_not_started_from_elsewhere(directory: Path, monkeypatch: pytest.MonkeyPatch, other: str):
    words = {
        "folder of names": ["cluster.name_resolve.nfs_record_root=elsewhere"],
        "kind of names": ["cluster.name_resolve.type=memory"],
    }.get(other, [])
    planned = build_plan(configuration(*words))  # before the first one begins, as this would be refused already
    running = lock()
    before = contents(directory)
    if other == "user":
        monkeypatch.setenv("LOGNAME", "another")
    with pytest.raises(ConfigError, match=r"own/t is already running \(pid .*; stop it first"):
        lock_run(configuration(*words), planned, "other", False)
    assert contents(directory) == before and not running.names.lost
    assert is_running(directory)
    running.release()
    assert not is_running(directory) and not (directory / OWNER).exists()
    again = lock(*words)
    assert again.start.attempt == 2
    again.release()
    assert not (directory / OWNER).exists()


def test_a_launcher_on_another_machine_keeps_its_run_while_it_is_alive(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    lock().release()
    before = contents(directory)
    with closing(elsewhere(directory, monkeypatch)) as claim:
        with pytest.raises(ConfigError, match=r"own/t is already running \(pid 7 on host other"):
            lock()
        assert not claim.lost
    assert contents(directory) == before


def test_a_claim_whose_machine_is_gone_is_taken_over_and_its_launcher_knows(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    directory.mkdir(parents=True)
    claim: Any = elsewhere(directory, monkeypatch)
    claim._stopped.set()  # it is stalled
    locked = lock()
    claim._renew(LAUNCHER, claim._own[LAUNCHER])  # it comes back
    assert LAUNCHER in claim.lost and not locked.names.lost
    locked.release()
    assert not (directory / OWNER).exists()


def test_who_loses_the_claim_loses_the_run(directory: Path):
    locked = lock()
    with closing(file_name_store(directory, OWNER, "a later launcher", TTL_S, is_private=False)) as later:
        later.delete(LAUNCHER)
        later.add(LAUNCHER, "")
        eventually(lambda: LAUNCHER in locked.names.lost)
        ending = lost_name_ending(locked.run, locked.names)
        assert ending is not None and "a later launcher" in ending.message
        locked.release(clears=False)
        assert later.get(LAUNCHER) == "" and not later.lost


def test_a_run_that_is_replaced_is_claimed_in_its_new_folder(directory: Path):
    lock().release()
    locked = lock(replace=True)
    assert is_running(directory)
    assert not (directory.with_name("t.replaced-1") / OWNER).exists()
    locked.release()
    assert not (directory / OWNER).exists()


def test_on_a_disk_without_links_the_name_alone_keeps_others_out(directory: Path, monkeypatch: pytest.MonkeyPatch):
    link = os.link

    def no_links(source: Path, target: Path) -> None:
        if str(source).startswith(str(directory)):
            raise PermissionError(1, "Operation not permitted", str(source))
        link(source, target)

    monkeypatch.setattr(os, "link", no_links)
    locked = lock("cluster.name_resolve.nfs_record_root=names")
    assert any(f"{directory} cannot be claimed" in message for message in locked.messages)
    assert not (directory / OWNER).exists()
    locked.release()


def test_other_users_may_read_the_claim(directory: Path):
    before = os.umask(0o022)
    try:
        locked = lock()
    finally:
        os.umask(before)
    claimed = [directory / OWNER, directory / OWNER / "launcher", directory / OWNER / "launcher" / "0@entry"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in claimed] == [0o755, 0o755, 0o644]
    locked.release()
