"""Removes shared memory and temporary folders of runs without processes, such as after launcher and guardian were
killed together. Each start of a command that runs, serves, sweeps or chats does it for its own user.

A run is alive while a process holds the lock on its folder (guardian, launcher, writers of weights; the kernel releases
it with the last of them) or a process of this user has the run's id in its environment. Both are checked under the
exclusive lock, so that no process can take a folder that is being removed (see `run_memory.lock_folder`).
"""

import logging
import os
import re
import tempfile
import time
from pathlib import Path

from areal_like.process.identity import RUN_ID
from areal_like.process.run_memory import PREFIX, SHARED_MEMORY, hold_if_free, remove_folder
from areal_like.process.shared_segments import remove_recorded
from areal_like.process.temporary_folders import remove_abandoned_folders

LAUNCHER_RUN_ID = re.compile(r"[0-9a-f]{12}")
"""Run ids that the launcher gives."""

SWEEP_LIMIT_S, POLL_S = 30.0, 0.005

log = logging.getLogger(__name__)


def remove_run_memory(memory: Path) -> None:
    """Removes a run's shared memory after its processes have ended. Segments that are still mapped stay recorded, for a
    later start."""
    if remove_recorded(memory):
        remove_folder(memory)


def remove_abandoned_memory() -> None:
    """Removes shared memory of this user's runs that have no process, and temporary folders that no process holds. In a
    process of its own, which is left alone where a disk does not answer."""
    child = os.fork()
    if child == 0:
        try:
            _remove_abandoned()
        except OSError as fault:
            log.warning("what runs that have ended have left cannot be removed: %s", fault)
        finally:
            os._exit(0)
    until = time.monotonic() + SWEEP_LIMIT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            where = f"{tempfile.gettempdir()} or {SHARED_MEMORY}"
            log.warning("%s: what runs that have ended have left is still being removed; see whether it answers", where)
            return
        time.sleep(POLL_S)


def _remove_abandoned() -> None:
    remove_abandoned_folders()
    for folder in sorted(SHARED_MEMORY.glob(f"{PREFIX}{os.getuid()}.*")):
        run_id = folder.name.rpartition(".")[2]
        if folder.name != f"{PREFIX}{os.getuid()}.{run_id}" or not LAUNCHER_RUN_ID.fullmatch(run_id):
            continue
        with hold_if_free(folder, os.getuid()) as is_free:
            if is_free and run_id not in running_run_ids():
                try:
                    remove_run_memory(folder)
                except OSError as fault:
                    log.warning("%s: left by a run that has ended, and cannot be removed: %s", folder, fault)


def running_run_ids() -> set[str]:
    """Ids of runs that have a process of this user."""
    run_ids, prefix = set(), f"{RUN_ID}=".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid != os.getuid():
                    continue  # another user can set any id
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            run_ids |= {
                each.removeprefix(prefix).decode(errors="replace") for each in variables if each.startswith(prefix)
            }
    return run_ids
