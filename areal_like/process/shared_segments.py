"""Removes shared memory segments that engines create outside of the run's folder and leave when killed.

Python's resource trackers remove segments that were registered with them, and get time for it (see `process_tree`). The
others are recorded while the engine runs: segments that appeared in /dev/shm after its start, with a name that such
programs give, owned by this user and mapped by a descendant of the recording process. They are removed once unmapped.
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

from areal_like.config.engines import engines
from areal_like.process.atomic_file import write_atomic
from areal_like.process.process_tree import descendants_of
from areal_like.process.run_memory import SHARED_MEMORY, is_private

COMMON = (r"psm_\w+", r"sem\.(mp|loky)-[^\s/]+", r"torch_\d+_[^\s/]+", r"nccl-\w+", r"cuda\.shm\.[^\s/]+")
"""Names that Python, torch, NCCL and CUDA give."""
POLL_S, CLOSE_TIMEOUT_S = 0.05, 10.0
MAX_LOOKS = 100
"""A segment that no descendant has mapped in so many looks belongs to another program."""
RECORD, MAX_RECORD_BYTES = "segments-", 1 << 20

log = logging.getLogger(__name__)


class SharedSegment(NamedTuple):
    """A file in /dev/shm, by name and inode, as names recur."""

    name: str
    inode: int


def is_segment_name(name: str) -> bool:
    """Whether an engine, or a library that it uses, gives such names."""
    patterns = (*COMMON, *(pattern for keys in engines() for pattern in keys.segments))
    return re.fullmatch("|".join(patterns), name) is not None


def present_segments() -> set[SharedSegment]:
    """All segments in /dev/shm with such names."""
    segments = set()
    for entry in os.scandir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ():
        if is_segment_name(entry.name):
            try:
                segments.add(SharedSegment(entry.name, entry.inode()))
            except FileNotFoundError:
                continue  # removed meanwhile
    return segments


def mapped_inodes(pids: Iterable[int]) -> set[int]:
    """Inodes of the files that these processes have mapped. Names are not compared: a semaphore is created under
    another one first."""
    inodes = set()
    prefix = f"{SHARED_MEMORY}/"
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue  # it has ended, or is another user's
        for line in lines:
            if prefix in line:
                inodes.add(int(line.split(maxsplit=5)[4]))
    return inodes


def remove_unmapped(segments: Iterable[SharedSegment]) -> list[SharedSegment]:
    """Removes segments of this user that no process has mapped. Returns those still in use."""
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
    if not is_segment_name(segment.name):
        return False
    try:
        state = (SHARED_MEMORY / segment.name).lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_ino == segment.inode and state.st_uid == os.getuid()


class SegmentRecorder:
    """Records the segments that descendants of this process create, until it is closed."""

    def __init__(self, record: Path) -> None:
        """`record`: file for another process to remove the segments if this one cannot, see `remove_recorded`."""
        self._record = record
        self._looks: dict[SharedSegment, int] = dict.fromkeys(present_segments(), MAX_LOOKS)
        self._mine: set[SharedSegment] = set()
        self._stop, self._one_looks = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="segments", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        with self._one_looks:
            self._poll()

    def _poll(self) -> None:
        new = {each for each in present_segments() - self._mine if self._looks.get(each, 0) < MAX_LOOKS}
        if not new:
            return
        mapped = mapped_inodes(process.pid for process in descendants_of(os.getpid()))
        mine = {each for each in new if each.inode in mapped}
        for each in new - mine:
            self._looks[each] = self._looks.get(each, 0) + 1
        if mine:
            self._mine |= mine
            if is_private(self._record.parent):
                write_atomic(self._record, json.dumps(sorted(self._mine)))

    def close(self) -> None:
        """Stops recording."""
        self._stop.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def remove(self) -> None:
        """Removes the recorded segments, after the processes have ended."""
        if not remove_unmapped(self._mine) and is_private(self._record.parent):
            self._record.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self.poll()


def record_path(memory: Path, name: str) -> Path:
    """File in the run's shared memory with the segments of one process."""
    return memory / f"{RECORD}{name}.json"


def remove_recorded(memory: Path, name: str = "*") -> bool:
    """Removes segments recorded by processes that have ended without removing them. Segments that a slowly dying child
    still has mapped stay recorded for the next time. Returns whether all are removed. Records decide what is removed,
    so those in a folder that others can write to are ignored."""
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
    """None, with a warning, if it is not as SegmentRecorder writes it."""
    try:
        handle = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid():
                raise ValueError("it is not a file of this user")
            return parse_record(file.read(MAX_RECORD_BYTES))
    except FileNotFoundError:
        return None  # its process has just removed it
    except (OSError, ValueError, RecursionError) as fault:
        log.warning("%s is ignored: %s", record, fault)
        return None


def parse_record(content: bytes) -> list[SharedSegment]:
    """Raises ValueError if it is not a record."""
    entries = json.loads(content)
    if not isinstance(entries, list):
        raise ValueError("it is not a list of names and numbers")
    for entry in entries:
        match entry:
            case [str(name), int()] if is_segment_name(name):
                continue
        raise ValueError(f"{str(entry)[:100]} is not a segment of an engine")
    return [SharedSegment(*entry) for entry in entries]
