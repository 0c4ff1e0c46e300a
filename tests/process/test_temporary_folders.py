"""Temporary folders of killed processes are removed by a later start, those of running ones are not."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from areal_like.process import abandoned_memory, temporary_folders
from areal_like.process.abandoned_memory import remove_abandoned_memory
from areal_like.process.run_memory import unlock_folder
from areal_like.process.sandbox.unprivileged_user import unused_user
from areal_like.process.temporary_folders import (
    ENGINE,
    PREFIXES,
    SANDBOX,
    SWEEP,
    make_temporary_folder,
    remove_temporary_folder,
    temporary_folder,
)
from tests.support.commands import REPOSITORY

MAKER = """
import sys
from pathlib import Path
from areal_like.process.temporary_folders import make_temporary_folder
folder = Path(make_temporary_folder(sys.argv[1]))
(folder / "deep").mkdir()
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made_by_another(root: Path, prefix: str) -> tuple[subprocess.Popen[str], Path]:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, prefix],
        env={**os.environ, "TMPDIR": str(root), "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert maker.stdout is not None
    return maker, Path(maker.stdout.readline().strip())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_only_the_folder_of_a_killed_process_is_removed(folder, prefix):
    maker, made = made_by_another(folder, prefix)
    remove_abandoned_memory()
    assert (made / "deep").is_dir()
    maker.kill()
    maker.communicate()
    remove_abandoned_memory()
    assert not made.exists()


def test_a_folder_whose_name_would_be_too_long_is_in_the_short_one_and_found_there(folder, monkeypatch):
    (short := folder / "short").mkdir()
    monkeypatch.setattr(temporary_folders, "SHORT_ROOT", str(short))
    (deep := folder / "a long name of a scratch folder").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    most = len(f"{deep}/{ENGINE}12345678")
    assert Path(make_temporary_folder(ENGINE, most)).parent == deep
    abandoned = Path(make_temporary_folder(ENGINE, most - 1))
    assert abandoned.parent == short and len(str(abandoned)) < most
    remove_abandoned_memory()
    assert abandoned.is_dir()
    unlock_folder(abandoned)
    remove_abandoned_memory()
    assert not abandoned.exists()
    monkeypatch.setattr(temporary_folders, "SHORT_ROOT", str(folder / "none"))
    assert Path(make_temporary_folder(ENGINE, 10)).parent == deep


def test_what_others_named_alike_and_what_this_process_holds_stays(folder):
    (folder / "areal-like-mine").mkdir()
    (folder / f"{SWEEP}link").symlink_to(folder / "areal-like-mine")
    (folder / f"{SWEEP}file").touch()
    with temporary_folder(SWEEP) as held:
        remove_abandoned_memory()
        assert held.is_dir()
    assert sorted(path.name for path in folder.iterdir()) == ["areal-like-mine", f"{SWEEP}file", f"{SWEEP}link"]


@pytest.mark.skipif(os.getuid() != 0 or unused_user() is None, reason="only root runs programs as another user")
def test_the_folder_of_a_sandbox_with_a_user_of_its_own_is_removed_too(folder):
    user = unused_user() or 0
    maker, made = made_by_another(folder, SANDBOX)
    os.chown(made, user, user)
    remove_abandoned_memory()
    assert made.is_dir()
    maker.kill()
    maker.communicate()
    remove_abandoned_memory()
    assert not made.exists()
    assert Path(make_temporary_folder(SANDBOX)).is_dir()


def test_a_link_that_another_user_made_of_its_name_is_removed_and_not_followed(folder, monkeypatch):
    """In the moment after it was removed."""
    (victim := folder / "victim").mkdir(mode=0o500)
    made = Path(make_temporary_folder(SANDBOX))
    run = subprocess.run

    def overtaken(command, **more):
        done = run(command, **more)
        if not victim_is_linked:
            made.symlink_to(victim)
            victim_is_linked.append(True)
        return done

    victim_is_linked = []
    monkeypatch.setattr(subprocess, "run", overtaken)
    remove_temporary_folder(str(made))
    assert victim.stat().st_mode & 0o777 == 0o500 and not made.is_symlink()


@pytest.mark.skipif(os.getuid() != 0, reason="root removes what is closed anyway; others run this as they are")
def test_folders_that_are_closed_to_their_owner_are_removed():
    with tempfile.TemporaryDirectory(prefix="areal-like-test-") as name:
        root = Path(name)
        root.chmod(0o777)
        if (child := os.fork()) == 0:
            os.setuid(54321)
            (root / "areal-like-sandbox-1" / "a" / "b" / "c").mkdir(parents=True)
            for closed in ("a/b/c", "a/b", "a"):
                (root / "areal-like-sandbox-1" / closed).chmod(0)
            remove_temporary_folder(str(root / "areal-like-sandbox-1"))
            os._exit(0)
        os.waitpid(child, 0)
        assert list(root.iterdir()) == []


MOUNTED = """21 28 0:19 / / rw - overlay overlay rw
22 21 0:20 / /home rw,relatime shared:1 - nfs4 server:/home rw
23 22 8:1 / /home/me/local\\040disk rw - ext4 /dev/sda1 rw
24 21 0:30 / /scratch rw - fuse.sshfs other: rw
"""


def test_nothing_is_removed_on_a_network_file_system_whose_locks_other_machines_do_not_see(folder, monkeypatch):
    (mounts := folder / "mounts").write_text(MOUNTED)
    monkeypatch.setattr(temporary_folders, "MOUNTS", mounts)
    places = ("/tmp", "/home/me", "/home/me/local disk/tmp", "/homes", "/scratch/tmp")
    assert [temporary_folders.is_on_network(Path(each)) for each in places] == [False, True, False, False, True]
    monkeypatch.setattr(temporary_folders, "SHORT_ROOT", str(folder))
    mounts.write_text(f"1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / {folder} rw - nfs server:/ rw\n")
    maker, made = made_by_another(folder, ENGINE)
    maker.kill()
    maker.communicate()
    remove_abandoned_memory()
    assert made.is_dir()


def test_a_disk_that_does_not_answer_does_not_keep_a_start(folder, monkeypatch, caplog):
    monkeypatch.setattr(abandoned_memory, "SWEEP_LIMIT_S", 0.3)
    monkeypatch.setattr(abandoned_memory, "remove_abandoned_folders", lambda: time.sleep(20))
    remove_abandoned_memory()
    assert f"{folder} or /dev/shm: what runs that have ended have left is still being removed" in caplog.text


def test_a_folder_that_cannot_be_listed_does_not_end_a_start(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    remove_abandoned_memory()
