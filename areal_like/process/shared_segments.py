"""Shared memory that vLLM and SGLang make for themselves, outside of the run's folder, and leave when they are killed.

Python's own resource trackers remove what processes of theirs registered, and are let do it (see `descendants`). The
rest is written down while its owner lives: what appeared in /dev/shm after the engine was started, has a name that such
programs give, is ours, and is mapped by a process below the one that looks. It is removed when nobody maps it any more.
"""

import json
import logging
import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from areal_like.process.atomic_file import write_atomic
from areal_like.process.process_tree import descendants_of
from areal_like.process.run_memory import SHARED_MEMORY, is_private

NAMES = re.compile(
    r"psm_\w+|sem\.(mp|loky)-[^\s/]+|torch_\d+_[^\s/]+|nccl-\w+|cuda\.shm\.[^\s/]+"  # Python, torch, NCCL and CUDA
    r"|sglang_(loads|host_pool)_[^\s/]+|sgl_shm_[^\s/]+|multi_tokenizer_args_\d+|vllm_(offload|ec)_[^\s/]+"
)
LOOK_S = 0.05
MAX_LOOKS = 100
"""What was not mapped by a process of ours in so many looks is another program's."""
RECORD, MAX_RECORD_BYTES = "segments-", 1 << 20

log = logging.getLogger(__name__)


class SharedSegment(NamedTuple):
    """A file in /dev/shm. A name may come again, a number does not."""

    name: str
    inode: int


def present_segments() -> set[SharedSegment]:
    """All of these kinds that there are."""
    found = set()
    for entry in os.scandir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ():
        if NAMES.fullmatch(entry.name):
            try:
                found.add(SharedSegment(entry.name, entry.inode()))
            except FileNotFoundError:
                continue  # gone meanwhile
    return found


def mapped_inodes(pids: Iterable[int]) -> set[int]:
    """The numbers of what these processes have in their memory. The names there are not those of today: a semaphore is
    made under another one first."""
    found = set()
    prefix = f"{SHARED_MEMORY}/"
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # it has ended, or is another user's
        for line in lines:
            if prefix in line:
                found.add(int(line.split(maxsplit=5)[4]))
    return found


def remove_unmapped(segments: Iterable[SharedSegment]) -> list[SharedSegment]:
    """Those that are still there, ours, and mapped by nobody. Returns what is still in use."""
    left = [segment for segment in segments if _is_ours(segment)]
    if not left:
        return []
    mapped = mapped_inodes(int(name) for name in os.listdir("/proc") if name.isdigit())
    in_use = [segment for segment in left if segment.inode in mapped]
    for segment in left:
        if segment not in in_use:
            (SHARED_MEMORY / segment.name).unlink(missing_ok=True)
    return in_use


def _is_ours(segment: SharedSegment) -> bool:
    if not NAMES.fullmatch(segment.name):
        return False
    try:
        state = (SHARED_MEMORY / segment.name).lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_ino == segment.inode and state.st_uid == os.getuid()


class SegmentRecorder:
    """Writes down what the processes below this one make, from now on until it is closed."""

    def __init__(self, record: Path) -> None:
        """`record` is for who removes it where this process cannot: see `remove_recorded`."""
        self._record = record
        self._strangers: dict[SharedSegment, int] = dict.fromkeys(present_segments(), MAX_LOOKS)
        self._mine: set[SharedSegment] = set()
        self._ends, self._one_looks = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="segments", daemon=True)
        self._thread.start()

    def look(self) -> None:
        with self._one_looks:
            self._look()

    def _look(self) -> None:
        new = {each for each in present_segments() - self._mine if self._strangers.get(each, 0) < MAX_LOOKS}
        if not new:
            return
        mapped = mapped_inodes(seen.pid for seen in descendants_of(os.getpid()))
        mine = {each for each in new if each.inode in mapped}
        for each in new - mine:
            self._strangers[each] = self._strangers.get(each, 0) + 1
        if mine:
            self._mine |= mine
            if is_private(self._record.parent):
                write_atomic(self._record, json.dumps(sorted(self._mine)))

    def close(self) -> None:
        """No more is written down."""
        self._ends.set()
        self._thread.join()

    def remove(self) -> None:
        """When the processes have ended."""
        if not remove_unmapped(self._mine) and is_private(self._record.parent):
            self._record.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._ends.wait(LOOK_S):
            self.look()


def record_path(memory: Path, name: str) -> Path:
    """Where in the run's folder the segments of a process of it are written down."""
    return memory / f"{RECORD}{name}.json"


def remove_recorded(memory: Path, name: str = "*") -> bool:
    """What was written down by processes that could not remove it themselves; they have ended. What one of their
    children still has, as it is slow to die, stays written down for the next time. Returns whether all is removed.
    Whoever can write records chooses what is removed: a folder that others can write to is not looked into."""
    if not is_private(memory):
        return True
    is_all = True
    for record in sorted(memory.glob(f"{RECORD}{name}.json")):
        segments = _recorded(record)
        if segments is None:
            continue
        if remove_unmapped(segments):
            is_all = False
        else:
            record.unlink(missing_ok=True)
    return is_all


def _recorded(record: Path) -> list[SharedSegment] | None:
    """None, and a line in the log, where it is not as a `Watch` writes it."""
    try:
        handle = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid():
                raise ValueError("it is not a file of this user")
            return parse_record(file.read(MAX_RECORD_BYTES))
    except FileNotFoundError:
        return None  # its process has removed it just now
    except (OSError, ValueError, RecursionError) as fault:
        log.warning("%s is ignored: %s", record, fault)
        return None


def parse_record(content: bytes) -> list[SharedSegment]:
    """Raises ValueError for what is no record."""
    entries = json.loads(content)
    if not isinstance(entries, list):
        raise ValueError("it is not a list of names and numbers")
    for entry in entries:
        match entry:
            case [str(name), int()] if NAMES.fullmatch(name):
                continue
        raise ValueError(f"{str(entry)[:100]} is not a segment of an engine")
    return [SharedSegment(*entry) for entry in entries]
