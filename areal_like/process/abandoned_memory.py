"""Folders in shared memory whose run has no process any more, as when launcher and guardian were killed together: the
next start of the same user removes them, and what their records name.

A run lives while somebody holds the lock on its folder (guardian, launcher, and whoever writes weights there: the
kernel drops it with the last of them), or while a process of this user has its id in the environment, as all that the
launcher starts have, and what these start. Both are looked at under the exclusive lock: a folder that is locked so and
removed is not taken by anybody meanwhile (see `memory.hold`).
"""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from areal_like.process.identity import RUN_ID
from areal_like.process.run_memory import OPEN_FOLDER, PREFIX, SHARED_MEMORY, is_same_file, remove_folder
from areal_like.process.shared_segments import remove_recorded

START_ID = re.compile(r"[0-9a-f]{12}")
"""The ids that the launcher gives."""

log = logging.getLogger(__name__)


def remove_run_memory(memory: Path) -> None:
    """All of a run in shared memory, when its processes have ended. What somebody still has mapped stays written down
    there, for a later start."""
    if remove_recorded(memory):
        remove_folder(memory)


def remove_abandoned_memory() -> None:
    """What runs of this user have left that have no process any more."""
    for folder in sorted(SHARED_MEMORY.glob(f"{PREFIX}{os.getuid()}.*")):
        run_id = folder.name.rpartition(".")[2]
        if folder.name != f"{PREFIX}{os.getuid()}.{run_id}" or not START_ID.fullmatch(run_id):
            continue
        with _locked(folder) as is_free:
            if is_free and run_id not in running_run_ids():
                try:
                    remove_run_memory(folder)
                except OSError as fault:
                    log.warning("%s: left by a run that has ended, and cannot be removed: %s", folder, fault)


def running_run_ids() -> set[str]:
    """The ids of runs of which this user has a process."""
    found, mark = set(), f"{RUN_ID}=".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid != os.getuid():
                    continue  # whoever it is may call himself what he likes
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            found |= {each.removeprefix(mark).decode(errors="replace") for each in variables if each.startswith(mark)}
    return found


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether it is a folder of ours that nobody holds; nobody can meanwhile."""
    try:
        handle = os.open(folder, OPEN_FOLDER)
    except OSError:  # no folder, or not ours to look into
        yield False
        return
    try:
        if os.fstat(handle).st_uid != os.getuid():
            yield False
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield is_same_file(handle, folder)
    finally:
        os.close(handle)
