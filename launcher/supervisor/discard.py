"""A start that one of its processes refuses before anything began gives its run directory and trial number back.

Removed is only what this very start has made, and only when it holds nothing but descriptions of the start: the message
on the terminal says all there is to know of it.
"""

import shutil
from pathlib import Path

from areal_like.data.data_record import RECORD
from areal_like.process.run import ATTEMPT, COMMAND, CONFIG, RUN_FACTS
from areal_like.process.run_links import LINKS
from launcher.runs.environment_record import CODE, ENVIRONMENT
from launcher.runs.linked_folders import remove_linked_folders
from launcher.runs.registry import last_attempt, unregister
from launcher.runs.run_files import ENDING_FILES, PROVENANCE
from launcher.runs.run_lock import LockedRun
from launcher.supervisor.supervisor import RunEnding

DESCRIPTION_FILES = {CONFIG, RUN_FACTS, ATTEMPT, COMMAND, PROVENANCE, RECORD, CODE, ENVIRONMENT, *ENDING_FILES}
TRANSIENT_FOLDERS = {"logs", "weights"}
"""Folders of what goes with the run: words of its processes, and copies of weights on their way."""
RESULT_FOLDERS = {"metrics", "checkpoints", "rollouts"}
"""Folders of what a run has done, which have empty files at first."""


def discard_unused_run(claimed: LockedRun, ending: RunEnding) -> bool:
    """Returns whether the directory is gone. None of the run's processes may be left."""
    directory = claimed.run.directory
    if not claimed.is_new or ending.outcome != "refused" or not ending.says_all:
        return False
    if last_attempt(directory) > 1 or not holds_no_work(directory):
        return False
    remove_linked_folders(directory)
    shutil.rmtree(directory)
    unregister(directory)
    return True


def holds_no_work(directory: Path) -> bool:
    """Whether there is nothing in it that somebody could want."""
    return all(_is_worthless(path) for path in directory.iterdir())


def _is_worthless(path: Path) -> bool:
    if path.is_symlink():
        return path.name in LINKS.values() and _is_empty(path)
    if path.is_dir():
        return path.name in TRANSIENT_FOLDERS or (path.name in RESULT_FOLDERS and _is_empty(path))
    return path.name in DESCRIPTION_FILES or path.stat().st_size == 0


def _is_empty(folder: Path) -> bool:
    return not any(path.is_symlink() or (path.is_file() and path.stat().st_size) for path in folder.rglob("*"))
