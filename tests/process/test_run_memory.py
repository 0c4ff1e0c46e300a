"""A run's shared memory folder is new and private, or not used."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from areal_like.process import run_memory
from areal_like.process.errors import Failure
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import Index, read_index, write_index
from areal_like.weights.version_folders import new_version
from tests.support.commands import REPOSITORY


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_memory, "SHARED_MEMORY", tmp_path)
    return run_memory.memory_folder(uuid.uuid4().hex[:12])


def opened(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def linked(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def owned_by_another(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (opened, "is open to other users (drwxrwxrwx)"),
        (linked, "is not a folder"),
        (owned_by_another, "belongs to user 12345"),
    ],
)
def test_a_folder_of_another_user_is_not_used(folder, make, why):
    make(folder)
    with pytest.raises(Failure) as refused:
        run_memory.ensure_run_memory(folder)
    assert str(refused.value).startswith(f"{folder}: {why}"), refused.value
    with pytest.raises(Failure), new_version(folder, 1):
        pass
    published = folder / "v000001"
    published.mkdir()
    write_index(published, Index(1, "run1", [], None))
    with pytest.raises(BadWeights, match="weights are not passed through it"):
        read_index(published)
    before = sorted(folder.parent.rglob("*"))
    if make is not opened:
        run_memory.remove_folder(folder)
        assert sorted(folder.parent.rglob("*")) == before, "what is not ours stays"


def test_a_guardian_needs_a_new_folder(folder):
    folder.mkdir(mode=0o700)
    code = (
        "import pathlib, sys; from launcher.supervisor.guardian import run_guarded; "
        "sys.exit(run_guarded(int, pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{folder}: exists already, made by user {os.getuid()}; start again")
    assert folder.is_dir()


def test_own_folders_are_private_with_any_umask(folder):
    before = os.umask(0)
    try:
        run_memory.create_run_memory(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode == 0o40700
    run_memory.ensure_run_memory(folder)
    with new_version(folder, 1) as made:
        write_index(made, Index(1, "run1", [], None))
    assert read_index(folder / "v000001").run_id == "run1"
    run_memory.remove_folder(folder)
    assert not folder.exists()


def test_a_machine_without_shared_memory_gets_no_folder(folder):
    folder.parent.rmdir()
    run_memory.create_run_memory(folder)
    assert not folder.parent.exists()
