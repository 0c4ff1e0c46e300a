"""Messages for what cannot be written, such as on a full disk."""

import errno
import os
from pathlib import Path
from typing import Any

from areal_like.process.run_links import key_of_path

MIN_FREE_BYTES = 1 << 16
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def write_error_text(error: OSError, config: Any, run_dir: str) -> str:
    """The message for a file that could not be written; begins with the key that sets its folder."""
    place = str(error.filename or run_dir)
    remedy = "make room there, or name" if error.errno in DISK_ERRORS else "name"
    key = key_of_path(Path(os.path.abspath(place)), config, Path.cwd())
    return f"{key}: {place}: {error.strerror or error}; {remedy} another folder"


def disk_is_full(folder: Path) -> bool:
    """Whether the disk or its inodes are used up."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
