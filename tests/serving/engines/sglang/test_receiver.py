"""The weight receiver of SGLang: private folders, removed after a kill."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.child_process import ChildProcess
from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.sglang import receiver
from areal_like.serving.engines.sglang.receiver import WeightReceiver
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import Bucket, Index
from areal_like.weights.rendezvous import Rendezvous

ROOT = Path(__file__).resolve().parents[3]
MEETING = Rendezvous("127.0.0.1", 1, "g", "gloo", 1, 2, 1.0)
HOLDS = """
import sys, pathlib
from areal_like.serving.engines.sglang.receiver import WeightReceiver
print(WeightReceiver(sys.argv[2], None, pathlib.Path("unused"))._folder_in(pathlib.Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


class FakeReceiver(WeightReceiver):
    """Its process answers what a test says, and receives nothing."""

    def __init__(self, name: str, answer: dict[str, str] | None = None, on_disk: Path = Path("unused")) -> None:
        super().__init__(name, None, on_disk)
        self.answer = answer or {}

    def _exchange(self, line: bytes) -> dict[str, str]:
        return self.answer


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(receiver, "memory_folder", lambda run_id: tmp_path / run_id)
    yield tmp_path / "run1"


def receive(by: WeightReceiver, version: int = 1, run_id: str = "run1") -> Path:
    return asyncio.run(by.receive(WeightUpdate(version, Index(version, run_id, [], None), None, MEETING)))


def holder(memory: Path, name: str) -> "tuple[subprocess.Popen[str], Path]":
    """A receiver in a process that a test can kill."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(memory), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_folders_of_a_killed_receiver_are_removed_by_the_next(memory) -> None:
    killed, left = holder(memory, "8001")
    (left / "v000001").mkdir()
    end(killed)
    replaced = FakeReceiver("8002")
    folder = receive(replaced)
    assert list(memory.glob("sglang-*")) == [folder.parent]
    replaced.close()
    assert not list(memory.glob("sglang-*"))


def test_folders_of_a_running_receiver_are_kept(memory) -> None:
    lives, its = holder(memory, "8001")
    try:
        (its / "v000001").mkdir()
        one, other = FakeReceiver("8001"), FakeReceiver("8001")
        folders = {receive(one), receive(other), receive(one)}
        assert len(folders) == 2 and (its / "v000001").is_dir()
        assert all(folder.is_dir() and folder.parent != its for folder in folders)
        one.close()
        other.close()
        assert list(memory.glob("sglang-*")) == [its]
    finally:
        end(lives)


def test_a_receiver_has_a_folder_for_each_sending_run(memory, tmp_path) -> None:
    one = FakeReceiver("8001")
    assert receive(one).parent.parent == memory
    assert receive(one, run_id="run2").parent.parent == tmp_path / "run2"
    assert not list(memory.glob("sglang-*"))
    one.close()


@pytest.mark.parametrize("words", ["OSError: [Errno 28] No space left on device: '/dev/shm/run1'"])
def test_a_failed_receiver_is_a_fault_with_its_error(memory, words) -> None:
    one = FakeReceiver("8001", {"failed": words})
    with pytest.raises(BadWeights, match=r"weights could not be received for SGLang: OSError: .*No space left"):
        receive(one)
    assert not list(memory.glob("*/v*"))
    one.close()


def test_a_receiver_that_does_not_answer_is_ended_after_a_named_limit(memory, monkeypatch) -> None:
    class Hangs(WeightReceiver):
        def _start(self) -> ChildProcess:
            self._process = ChildProcess(["sleep", "600"], os.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            started.append(self._process)
            return self._process

    started: list[ChildProcess] = []
    monkeypatch.setattr(receiver, "START_S", 0.0)
    hangs = Hangs("8001", None, Path("unused"))
    with pytest.raises(GroupBroken, match=r"did not answer within 1 s \(weights\.broadcast\.timeout_s, and 0 s"):
        receive(hangs)
    assert started[0].exit_code() == -signal.SIGKILL
    hangs.close()


def test_weights_are_received_on_disk_if_shared_memory_is_too_small(memory, tmp_path, caplog) -> None:
    one = FakeReceiver("8001", on_disk=tmp_path / "weights")
    small, large = ([Bucket("b", size, "", [])] for size in (1, 1 << 60))
    for version, buckets in ((1, large), (2, large), (3, small)):
        arrival = WeightUpdate(version, Index(version, "run1", buckets, None), None, MEETING)
        folder = asyncio.run(one.receive(arrival))
        assert folder.is_dir() and folder.parent.parent == (memory if buckets is small else tmp_path / "weights")
    assert caplog.text.count("has no room for") == 1
    one.close()
    assert not list((tmp_path / "weights").glob("sglang-*"))


def test_a_folder_that_cannot_be_made_is_named(memory, tmp_path) -> None:
    memory.write_text("no folder")
    with pytest.raises(BadWeights, match=r"weights could not be received for SGLang: .*run1"):
        receive(FakeReceiver("8001"))


def test_received_weights_are_private(memory) -> None:
    one = FakeReceiver("8001")
    folder: Any = receive(one)
    for path in (folder, folder.parent, memory):
        assert path.stat().st_mode & 0o077 == 0
    one.close()
