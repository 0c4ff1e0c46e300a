"""Only leftover shared memory of this user's ended runs is removed."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from areal_like.process.abandoned_memory import remove_abandoned_memory, remove_run_memory
from areal_like.process.identity import RUN_ID
from areal_like.process.run_memory import SHARED_MEMORY, create_run_memory, lock_folder, memory_folder, unlock_folder
from areal_like.process.shared_segments import SegmentRecorder, parse_record
from launcher.cli import main
from tests.support.commands import REPOSITORY

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this machine has no /dev/shm")

OTHER_USER_ID = 65534
root_alone = pytest.mark.skipif(os.getuid() != 0, reason="only root can act for another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = memory_folder(uuid.uuid4().hex[:12])
    yield path
    unlock_folder(path)
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def kept_folder(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def record_of(kept_folder: Path) -> str:
    up = os.path.relpath(kept_folder, SHARED_MEMORY)
    return json.dumps([[str(kept_folder), kept_folder.stat().st_ino], [up, kept_folder.stat().st_ino]])


def write_as_other_user(folder: Path, record: str) -> None:
    folder.mkdir(mode=0o755)
    (folder / "segments-x.json").write_text(record)
    os.chown(folder, OTHER_USER_ID, OTHER_USER_ID)


@root_alone
@pytest.mark.parametrize("is_json", [True, False])
def test_the_folder_of_another_user_names_nothing_that_is_removed(
    folder: Path, kept_folder: Path, is_json: bool, caplog
):
    write_as_other_user(folder, record_of(kept_folder) if is_json else "{")
    remove_run_memory(folder)
    remove_abandoned_memory()
    assert kept_folder.exists() and (folder / "segments-x.json").exists() and not caplog.text


@root_alone
def test_another_folder_made_in_place_of_the_runs_is_not_cleared(folder: Path, kept_folder: Path):
    code = f"""
import os, pathlib, sys
from launcher.supervisor.guardian import run_guarded
from tests.process.test_abandoned_memory import write_as_other_user
folder = pathlib.Path({str(folder)!r})
def launch():
    folder.rmdir()
    write_as_other_user(folder, {record_of(kept_folder)!r})
    return 0
sys.exit(run_guarded(launch, folder))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert kept_folder.exists() and (folder / "segments-x.json").exists()


def test_shared_memory_exists_until_the_launcher_ends(folder: Path, tmp_path: Path):
    """Otherwise a folder made again before the guardian clears it would be removed."""
    code = f"""
import os, pathlib, sys
from launcher.supervisor import guardian
folder, kill_descendants = pathlib.Path({str(folder)!r}), guardian.kill_descendants
def seen():
    left = kill_descendants()
    print(folder.exists(), flush=True)
    return left
guardian.kill_descendants = seen
sys.exit(guardian.run_guarded(lambda: 0, folder))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, folder.exists()) == ("True\nTrue\n", "", False)


@pytest.mark.parametrize("kind", ["names", "link", "not JSON", "no list", "deep"])
def test_an_invalid_record_gives_one_line_and_removes_nothing(folder: Path, kept_folder: Path, kind: str, caplog):
    create_run_memory(folder)
    path = folder / "segments-x.json"
    if kind == "link":
        path.symlink_to(kept_folder)
    else:
        texts = {"names": record_of(kept_folder), "not JSON": "{", "no list": "3", "deep": "[" * 100_000}
        path.write_text(texts[kind])
    remove_run_memory(folder)
    assert kept_folder.exists() and not folder.exists()
    (line,) = caplog.messages
    assert line.startswith(f"{path} is ignored: "), line


@pytest.mark.parametrize("name", ["psm_../../x", "sem.mp-/etc/x", "sglang_loads_/../x", "/etc/passwd", "../x", ""])
def test_a_name_with_a_path_is_no_segment(name: str):
    with pytest.raises(ValueError, match="is not a segment of an engine"):
        parse_record(json.dumps([[name, 1]]).encode())


def test_nothing_is_recorded_in_a_linked_folder(folder: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "segments-x.json").touch()
    folder.symlink_to(elsewhere)
    watch = SegmentRecorder(folder / "segments-x.json")
    watch.close()
    watch.remove()
    assert (elsewhere / "segments-x.json").exists()


def is_removed(folder: Path, clear: Callable[[], None]) -> bool:
    """A command that starts on the machine meanwhile looks at the folder too, and locks it for that moment."""
    ends = time.monotonic() + 60
    while folder.exists() and time.monotonic() < ends:
        clear()
    return not folder.exists()


def clear_in_another_process() -> None:
    code = "from areal_like.process.abandoned_memory import remove_abandoned_memory\nremove_abandoned_memory()"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)


def test_a_locked_folder_belongs_to_a_running_run(folder: Path):
    create_run_memory(folder)
    clear_in_another_process()
    assert folder.exists()
    unlock_folder(folder)
    assert is_removed(folder, clear_in_another_process)
    assert not lock_folder(folder), "it was removed, and can be made again"


def test_a_folder_whose_run_has_a_process_is_kept(folder: Path):
    create_run_memory(folder)
    run_id = folder.name.rpartition(".")[2]
    with subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_ID: run_id}) as process:
        unlock_folder(folder)
        remove_abandoned_memory()
        assert folder.exists()
        process.kill()
    assert is_removed(folder, remove_abandoned_memory)


def test_folders_with_other_names_are_kept(folder: Path):
    others = [folder.with_name(name) for name in (f"{folder.name}.mine", f"areal-like.{os.getuid()}.mine")]
    try:
        for other in others:
            other.mkdir(mode=0o700)
        remove_abandoned_memory()
        assert all(other.is_dir() for other in others)
    finally:
        for other in others:
            other.rmdir()


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "grpo.yaml", "actor.path=/nowhere"],
        ["serve", "--config", "grpo.yaml", "actor.path=/nowhere"],
        ["--multirun", "--config", "grpo.yaml", "seed=1,2", "actor.path=/nowhere"],
        ["chat", "nowhere/none"],
    ],
    ids=["run", "serve", "sweep", "chat"],
)
def test_every_start_removes_the_memory_of_dead_runs_also_one_that_is_refused(
    folder: Path, tmp_path: Path, words: list[str], monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder.mkdir(mode=0o700)
    (folder / "weights").write_text("w")
    assert main(words) == 2
    assert not folder.exists()


def test_a_dry_run_removes_no_memory(folder: Path, tmp_path: Path, monkeypatch):
    """Another run of this machine that starts meanwhile does; not each time."""
    monkeypatch.chdir(tmp_path)

    def is_kept() -> bool:
        folder.mkdir(mode=0o700, exist_ok=True)
        assert main(["--dry-run", "--config", "grpo.yaml"]) == 0
        return folder.exists()

    assert any(is_kept() for _ in range(10))
