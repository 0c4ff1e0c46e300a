"""The process that receives weights for SGLang, as seen from the attendant."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import areal_like
from areal_like.process.errors import Failure
from areal_like.process.run_memory import ensure_run_memory, memory_folder
from areal_like.process.spawn import spawn
from areal_like.serving.external.base import WeightUpdate
from areal_like.serving.installations import find_installation
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import Index, dump_index
from areal_like.weights.publication_root import has_room

log = logging.getLogger(__name__)

MODULE = "areal_like.serving.sglang.receive"
FOLDER_PREFIX, LOCK_FILE, FOLDER_LOCK = "sglang-", "in-use", ".receivers"
"""How the folders of receivers begin, the file in each that its receiver keeps locked as long as it lives, and the one
beside them that is locked by whoever makes or clears them. Who holds the lock of the run's folder uses that."""


class WeightReceiver:
    """Started when the first weights are sent, and kept: it takes seconds to start. `name` tells the folders of
    several servers apart; `python` is what the configuration says. Weights are received into the shared memory of the
    run that sends them, or into `on_disk` where that is too small. Folders that receivers which are gone have left
    there are cleared away before a new one is made."""

    def __init__(self, name: str, python: str | None, on_disk: Path) -> None:
        self._name, self._said_python, self._on_disk = name, python, on_disk
        self._root: Path | None = None
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def receive(self, update: WeightUpdate) -> Path:
        """The folder with all that was sent, when every hash was right. Raises BadWeights, also where there is no place
        for weights, or GroupBroken."""
        assert update.meeting is not None, "who sends nothing is not received from"
        try:
            folder = self._folder_in(self._place(update.index)) / f"v{update.version:06d}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        except (OSError, Failure) as fault:
            raise BadWeights(f"weights could not be received for SGLang: {fault}") from fault
        order = {
            "meeting": update.meeting._asdict(),
            "index": dump_index(update.index),
            "folder": str(folder),
        }
        try:
            answer = await asyncio.to_thread(self._exchange, json.dumps(order).encode() + b"\n")
        except BaseException:
            self._end()  # it may still be waiting for the sender
            self.forget()
            raise
        if not answer:
            return folder
        self.forget()
        if "refused" in answer:
            raise BadWeights(answer["refused"])
        if "group_broken" in answer:
            raise GroupBroken(answer["group_broken"])
        raise BadWeights(f"weights could not be received for SGLang: {answer['failed']}")

    def forget(self) -> None:
        """Nobody needs what was received."""
        if self._root is not None:
            for folder in self._root.glob("v*"):
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self._end()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._root = self._lock = None

    def _place(self, index: Index) -> Path:
        memory, wanted = memory_folder(index.run_id), sum(bucket.bytes for bucket in index.buckets)
        if has_room(memory.parent, wanted):
            return memory
        if self._root is None or self._root.parent != self._on_disk:
            log.warning("weights are received in %s: %s has no room for %d bytes", self._on_disk, memory.parent, wanted)
        return self._on_disk

    def _folder_in(self, place: Path) -> Path:
        """Its own, made anew for each run whose weights come."""
        if self._root is not None and self._root.parent == place and self._root.is_dir():
            return self._root
        self.close()
        if place == self._on_disk:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            ensure_run_memory(place)
        with _locked(place):
            for left in place.glob(f"{FOLDER_PREFIX}*"):
                if not _is_in_use(left):
                    shutil.rmtree(left, ignore_errors=True)
            self._root = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{self._name}-", dir=place))
            self._lock = os.open(self._root / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self._root

    def _exchange(self, line: bytes) -> dict[str, str]:
        """Blocks until the answer; ends when the process is killed meanwhile."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None, "it was started with both"
        try:
            process.stdin.write(line)
            process.stdin.flush()
            said = process.stdout.readline()
        except (OSError, ValueError):  # it has ended, or was killed
            said = b""
        if not said:
            raise GroupBroken("the process that receives weights for SGLang has ended; its log says why")
        answer: dict[str, str] = json.loads(said)
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        assert self._root is not None, "known since the first arrival"
        imports = self._root / "imports"
        imports.mkdir(parents=True, exist_ok=True)
        link = imports / areal_like.__name__
        if not link.is_symlink():
            link.symlink_to(Path(areal_like.__file__).resolve().parent)
        try:
            python = find_installation("sglang", self._said_python, Path.cwd()).python
        except ValueError as unknown:
            raise BadWeights(f"weights cannot be received for SGLang: {unknown}") from unknown
        self._process = spawn(
            [python, "-m", MODULE],
            {**os.environ, "PYTHONPATH": str(imports)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            new_session=False,
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not written yet
                        pipe.close()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One at a time makes folders in it or clears them away."""
    held = os.open(folder / FOLDER_LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _is_in_use(root: Path) -> bool:
    try:
        held = os.open(root / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False
