"""Shared memory of an engine is removed with it, and other files are kept."""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from areal_like.process.abandoned_memory import remove_abandoned_memory, running_run_ids
from areal_like.process.run_memory import SHARED_MEMORY, create_run_memory, hold_if_free, memory_folder
from areal_like.process.shared_segments import (
    SegmentRecorder,
    SharedSegment,
    is_segment_name,
    mapped_inodes,
    present_segments,
    remove_recorded,
    remove_unmapped,
)
from tests.support.engine_program import Program
from tests.support.external_processes import environment, external_server, program, write_run

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this machine has no /dev/shm")

MAKES = """
import mmap, os, signal, subprocess, sys, time, uuid
from multiprocessing import get_context, resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=1 << 20)
lock = get_context("spawn").Lock()
path = f"/dev/shm/sglang_loads_{uuid.uuid4().hex}.shm"
with open(path, "w+b") as file:
    file.truncate(4096)
    loads = mmap.mmap(file.fileno(), 4096)
if os.environ.get("TRACKER") == "killed":
    os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
print("made", memory.name, "sem." + lock._semlock.name[1:], os.path.basename(path), flush=True)
time.sleep(600)
"""
"""As vLLM and SGLang do: a segment, a semaphore, and a file that no resource tracker knows of."""


@pytest.fixture
def others() -> Iterator[list[str]]:
    """Of another program, with names of the same kinds: one that it has mapped, and one that it has not."""
    segment = SharedMemory(create=True, size=4096)
    path = SHARED_MEMORY / f"sglang_loads_{uuid.uuid4().hex}.shm"
    path.write_bytes(bytes(64))
    yield [segment.name, path.name]
    segment.close()
    segment.unlink()
    path.unlink()


def left(names: list[str]) -> list[str]:
    return [name for name in names if (SHARED_MEMORY / name).exists()]


def made_by(output: str) -> list[str]:
    return output.split("made ")[1].splitlines()[0].split()


@pytest.mark.parametrize("tracker", ["alive", "killed"])
@pytest.mark.parametrize("how", ["terminated", "the engine is killed"])
def test_nothing_that_an_engine_made_is_left_when_it_ends(tmp_path: Path, others: list[str], how: str, tracker: str):
    directory, memory = with_memory(tmp_path)
    create_run_memory(memory)
    with external_server(directory, *program(MAKES), TRACKER=tracker) as one:
        one.until_printed("made ")
        made = made_by(one.printed)
        assert left(made) == made
        until_written_down(memory)
        if how == "terminated":
            one.process.terminate()
        else:
            (engine,) = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
            os.kill(int(engine), signal.SIGKILL)
        assert one.code() == (0 if how == "terminated" else 1)
        assert (left(made), left(others), list(memory.iterdir())) == ([], others, [])
    memory.rmdir()


def with_memory(root: Path) -> tuple[Path, Path]:
    """The directory of a run, and its folder in shared memory, which does not exist yet."""
    directory, run_id = write_run(root), uuid.uuid4().hex[:12]
    facts = json.loads((directory / "run.json").read_text())
    (directory / "run.json").write_text(json.dumps({**facts, "run_id": run_id}))
    return directory, memory_folder(run_id)


def until_written_down(memory: Path) -> None:
    ends = time.monotonic() + 60
    while sum(len(json.loads(path.read_text())) for path in memory.glob("segments-*.json")) < 3:
        assert time.monotonic() < ends
        time.sleep(0.01)


def until_no_process(memory: Path) -> None:
    """Nor its lock, which the kernel releases after the environment of a process that ends."""
    ends = time.monotonic() + 60
    while memory.name.rpartition(".")[2] in running_run_ids() or not is_free(memory):
        assert time.monotonic() < ends
        time.sleep(0.01)


def is_free(memory: Path) -> bool:
    with hold_if_free(memory, os.getuid()) as free:
        return free or not memory.exists()


GUARDED = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from launcher.supervisor.guardian import run_guarded
directory, memory, victim = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
command = [sys.executable, "-m", "areal_like.serving", "--run-dir", str(directory), "--index", "0"]

def launch():
    with (directory / "output").open("wb") as output:
        server = subprocess.Popen([*command, *sys.argv[4:]], stdout=output, stderr=output, start_new_session=True)
    while b"made " not in (directory / "output").read_bytes():
        assert server.poll() is None
        time.sleep(0.01)
    while sum(len(json.loads(path.read_text())) for path in memory.glob("segments-*.json")) < 3:
        time.sleep(0.01)
    victims = {"server": server.pid, "guardian": os.getppid(), "launcher": os.getpid()}
    for pid in victims.values() if victim == "all" else [victims[victim]]:
        os.kill(pid, signal.SIGKILL)
    if victim == "server":
        server.wait()
        return 0
    time.sleep(600)

sys.exit(run_guarded(launch, memory))
"""


@pytest.mark.parametrize("victim", ["server", "launcher", "guardian", "all"])
def test_segments_of_an_engine_are_removed_whatever_process_is_killed(tmp_path: Path, others: list[str], victim: str):
    directory, memory = with_memory(tmp_path)
    words = [str(directory), str(memory), victim, *program(MAKES)]
    started = subprocess.Popen(
        [sys.executable, "-c", GUARDED, *words],
        env=environment(directory, TRACKER="killed"),
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = started.communicate(timeout=120)  # who is left holds the pipe until all is cleared
    made = made_by((directory / "output").read_text())
    if victim == "all":
        until_no_process(memory)
        remove_abandoned_memory()  # as every start does, of whatever run
    assert started.returncode == {"server": 0, "launcher": 1}.get(victim, -signal.SIGKILL), errors
    assert (left(made), left(others), memory.exists()) == ([], others, False)


@pytest.mark.parametrize("tracker", ["there", "killed"])
def test_an_engine_started_by_a_test_leaves_nothing(tmp_path: Path, others: list[str], tracker: str):
    output = tmp_path / "output"
    with output.open("wb") as file:
        started = Program([sys.executable, "-c", MAKES], {**os.environ, "TRACKER": tracker}, tmp_path, file)
    try:
        ends = time.monotonic() + 60
        while "\n" not in output.read_text():
            assert time.monotonic() < ends
            time.sleep(0.01)
    finally:
        started.end()
    made = made_by(output.read_text())
    assert len(made) == 3 and (left(made), left(others)) == ([], others)


def test_only_new_segments_mapped_by_the_engine_are_recorded(tmp_path: Path, others: list[str]):
    watch = SegmentRecorder(tmp_path / "segments-test.json")
    mine = SharedMemory(create=True, size=4096)  # this process is not below itself
    try:
        watch.poll()
        assert not (tmp_path / "segments-test.json").exists()
    finally:
        watch.close()
        watch.remove()
        mine.close()
        assert left([mine.name]) == [mine.name]
        mine.unlink()
    assert left(others) == others


def test_mapped_segments_and_other_files_of_the_name_are_kept(tmp_path: Path, others: list[str]):
    known = {segment.name: segment for segment in present_segments()}
    mapped, unmapped = (known[name] for name in others)
    assert mapped.inode in mapped_inodes([os.getpid()]) and unmapped.inode not in mapped_inodes([os.getpid()])
    assert remove_unmapped(
        [mapped, SharedSegment(unmapped.name, unmapped.inode + 1), SharedSegment("psm_that_is_gone", 1)]
    ) == [mapped]
    assert left(others) == others
    record = tmp_path / "segments-server-0.json"
    record.write_text(json.dumps([mapped]))
    remove_recorded(tmp_path)
    assert left(others) == others and record.exists(), "it is tried again when the run has ended"
    with (SHARED_MEMORY / unmapped.name).open("r+b") as file, mmap.mmap(file.fileno(), 64):
        remove_unmapped([unmapped])
    assert left(others) == others


@pytest.mark.parametrize("name", ["areal-like.0.abc", "model", "sem.backup", "psm", "my_psm_1", "sglang_models"])
def test_other_shared_memory_files_are_not_taken_for_segments(name: str):
    assert not is_segment_name(name)
