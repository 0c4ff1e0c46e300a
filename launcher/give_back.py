"""A start that one of its processes refuses before anything began gives its run directory and trial number back.

Removed is only what this very start has made, and only when it holds nothing but descriptions of the start: the message
on the terminal says all there is to know of it.
"""

import shutil
from pathlib import Path

from areal_like.data.record import RECORD
from areal_like.process.places import LINKS
from areal_like.process.run import ATTEMPT, COMMAND, CONFIG, FACTS
from launcher.claim import Claimed
from launcher.elsewhere import remove_parts
from launcher.run_files import ENDED, PROVENANCE
from launcher.runs import forget, last_attempt
from launcher.supervise import Ending
from launcher.surroundings import CODE, ENVIRONMENT

DESCRIPTIONS = {CONFIG, FACTS, ATTEMPT, COMMAND, PROVENANCE, RECORD, CODE, ENVIRONMENT, *ENDED}
IN_PASSING = {"logs", "weights"}
"""Folders of what goes with the run: words of its processes, and copies of weights on their way."""
WORK = {"metrics", "checkpoints", "rollouts"}
"""Folders of what a run has done, which have empty files at first."""


def give_back(claimed: Claimed, ending: Ending) -> bool:
    """Returns whether the directory is gone. None of the run's processes may be left."""
    directory = claimed.run.directory
    if not claimed.is_new or ending.outcome != "refused" or not ending.says_all:
        return False
    if last_attempt(directory) > 1 or not nothing_began(directory):
        return False
    remove_parts(directory)
    shutil.rmtree(directory)
    forget(directory)
    return True


def nothing_began(directory: Path) -> bool:
    """Whether there is nothing in it that somebody could want."""
    return all(_is_worthless(path) for path in directory.iterdir())


def _is_worthless(path: Path) -> bool:
    if path.is_symlink():
        return path.name in LINKS.values() and _is_empty(path)
    if path.is_dir():
        return path.name in IN_PASSING or (path.name in WORK and _is_empty(path))
    return path.name in DESCRIPTIONS or path.stat().st_size == 0


def _is_empty(folder: Path) -> bool:
    return not any(path.is_symlink() or (path.is_file() and path.stat().st_size) for path in folder.rglob("*"))
