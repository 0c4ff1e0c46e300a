"""Removes the run directory of a start that a process refused before any work was done, which frees its trial number.

Only a directory that this start created is removed, and only if it holds nothing but descriptions of the start.
"""

import shutil
from pathlib import Path

from areal_like.data.data_record import RECORD, ROW_CACHE
from areal_like.process.run import ATTEMPT, COMMAND, CONFIG, RUN_FACTS, last_attempt
from areal_like.process.run_links import LINKS
from launcher.runs.environment_record import CODE, ENVIRONMENT
from launcher.runs.linked_folders import remove_linked_folders
from launcher.runs.registry import OWNER, unregister
from launcher.runs.run_files import ENDING_FILES, PROVENANCE
from launcher.supervisor.lifecycle import RunEnding
from launcher.supervisor.run_lock import LockedRun

DESCRIPTION_FILES = {CONFIG, RUN_FACTS, ATTEMPT, COMMAND, PROVENANCE, RECORD, CODE, ENVIRONMENT, *ENDING_FILES}
TRANSIENT_FOLDERS = {"logs", "weights", ROW_CACHE, OWNER}
"""Folders whose content may be lost: logs, weights in transit, what is computed from data files, a launcher's claim."""
RESULT_FOLDERS = {"metrics", "checkpoints", "rollouts"}
"""Folders of a run's results; at first their files are empty."""


def discard_unused_run(locked: LockedRun, ending: RunEnding) -> bool:
    """Returns whether the directory is gone. None of the run's processes may be left."""
    directory = locked.run.directory
    if not locked.is_new or ending.outcome != "refused" or not ending.is_complete:
        return False
    if last_attempt(directory) > 1 or not holds_no_work(directory):
        return False
    locked.release_directory()  # its heartbeat would write into the folder that is removed
    remove_run(directory)
    return True


def remove_run(directory: Path) -> None:
    """With all that belongs to it. None of the run's processes may be left."""
    remove_linked_folders(directory)
    shutil.rmtree(directory)
    unregister(directory)


def holds_no_work(directory: Path) -> bool:
    """Whether it contains no results."""
    return all(_is_disposable(path) for path in directory.iterdir())


def _is_disposable(path: Path) -> bool:
    if path.is_symlink():
        return path.name in LINKS.values() and _is_empty(path)
    if path.is_dir():
        return path.name in TRANSIENT_FOLDERS or (path.name in RESULT_FOLDERS and _is_empty(path))
    return path.name in DESCRIPTION_FILES or path.stat().st_size == 0


def _is_empty(folder: Path) -> bool:
    return not any(path.is_symlink() or (path.is_file() and path.stat().st_size) for path in folder.rglob("*"))
