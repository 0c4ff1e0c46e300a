"""Runs the process that receives weights for SGLang, and owns the folders that it writes."""

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
from areal_like.process.child_process import ChildProcess
from areal_like.process.errors import Failure
from areal_like.process.run_memory import ensure_run_memory, memory_folder
from areal_like.serving.engines.base import WeightUpdate
from areal_like.serving.engines.external.installations import find_installation
from areal_like.serving.engines.sglang.distribution import DISTRIBUTION
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.index import Index, dump_index
from areal_like.weights.publication_root import has_room

START_S = 60.0
"""What the process may take to start, beside the limit of the transfer itself."""

log = logging.getLogger(__name__)

MODULE = "areal_like.serving.engines.sglang.plugin.receive"
FOLDER_PREFIX, LOCK_FILE, FOLDER_LOCK = "sglang-", "in-use", ".receivers"
"""Prefix of receivers' folders; the file in each that its receiver keeps locked; the file beside them that is locked
while folders are made or removed."""


class WeightReceiver:
    """Started with the first weights and kept running, as it takes seconds to start. `name` distinguishes the folders
    of several servers; `python` is the configured one. Weights are received into the sending run's shared memory, or
    into `on_disk` if that is too small. Folders of dead receivers are removed before a new one is made."""

    def __init__(self, name: str, python: str | None, on_disk: Path) -> None:
        self._name, self._python, self._on_disk = name, python, on_disk
        self._root: Path | None = None
        self._lock: int | None = None
        self._process: ChildProcess | None = None

    async def receive(self, update: WeightUpdate) -> Path:
        """The folder with the received weights, whose hashes are verified. Raises BadWeights, also if there is no room,
        or GroupBroken."""
        assert update.rendezvous is not None, "these weights are in files"
        try:
            folder = self._folder_in(self._place(update.index)) / f"v{update.version:06d}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        except (OSError, Failure) as fault:
            raise BadWeights(f"weights could not be received for SGLang: {fault}") from fault
        message = {
            "meeting": update.rendezvous._asdict(),
            "index": dump_index(update.index),
            "folder": str(folder),
        }
        limit_s = update.rendezvous.timeout_s + START_S
        try:
            async with asyncio.timeout(limit_s):
                answer = await asyncio.to_thread(self._exchange, json.dumps(message).encode() + b"\n")
        except BaseException as fault:
            self._end()  # it may still wait for the sender
            self.forget()
            if isinstance(fault, TimeoutError):
                raise GroupBroken(
                    f"the process that receives weights for SGLang did not answer within {limit_s:g} s "
                    f"(weights.broadcast.timeout_s, and {START_S:g} s for its start)"
                ) from None
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
        """Removes the received weights."""
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
        memory, num_bytes = memory_folder(index.run_id), sum(bucket.bytes for bucket in index.buckets)
        if has_room(memory.parent, num_bytes):
            return memory
        if self._root is None or self._root.parent != self._on_disk:
            log.warning(
                "weights are received in %s: %s has no room for %d bytes", self._on_disk, memory.parent, num_bytes
            )
        return self._on_disk

    def _folder_in(self, place: Path) -> Path:
        """The receiver's folder, a new one for each sending run."""
        if self._root is not None and self._root.parent == place and self._root.is_dir():
            return self._root
        self.close()
        if place == self._on_disk:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            ensure_run_memory(place)
        with _locked(place):
            for other in place.glob(f"{FOLDER_PREFIX}*"):
                if not _is_in_use(other):
                    shutil.rmtree(other, ignore_errors=True)
            self._root = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{self._name}-", dir=place))
            self._lock = os.open(self._root / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self._root

    def _exchange(self, line: bytes) -> dict[str, str]:
        """Blocks until the answer, or until the process is killed."""
        process = self._process or self._start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            output = process.stdout.readline()
        except (OSError, ValueError):  # it has ended, or was killed
            output = b""
        if not output:
            raise GroupBroken("the process that receives weights for SGLang has ended; its log has the reason")
        answer: dict[str, str] = json.loads(output)
        return answer

    def _start(self) -> ChildProcess:
        assert self._root is not None, "receive has made it"
        imports = self._root / "imports"
        imports.mkdir(parents=True, exist_ok=True)
        link = imports / areal_like.__name__
        if not link.is_symlink():
            link.symlink_to(Path(areal_like.__file__).resolve().parent)
        try:
            python = find_installation(DISTRIBUTION, self._python, Path.cwd()).python
        except ValueError as fault:
            raise BadWeights(f"weights cannot be received for SGLang: {fault}") from fault
        self._process = ChildProcess(
            [python, "-m", MODULE],
            {**os.environ, "PYTHONPATH": str(imports)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # unwritten data
                    pipe.close()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Excludes other processes that make or remove folders in it."""
    lock = os.open(folder / FOLDER_LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_in_use(root: Path) -> bool:
    try:
        lock = os.open(root / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
