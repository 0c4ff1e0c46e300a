"""Temporary folders whose makers may be killed: each is locked while the process that made it, or a fork of that,
lives; a later start removes those that nobody locks. The kernel releases the lock, also for other containers."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from areal_like.process.run_memory import hold_if_free, lock_folder, unlock_folder
from areal_like.process.sandbox.unprivileged_user import unused_users

ENGINE, SANDBOX, SWEEP, RESULT, ROWS = PREFIXES = (
    *("areal-like-engine-", "areal-like-sandbox-", "areal-like-sweep-", "areal-like-result-", "areal-like-rows-"),
)

SHORT_ROOT = "/tmp"
REMOVAL_TIMEOUT_S = 600.0
MOUNTS = Path("/proc/self/mountinfo")
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "virtiofs", "fuse")
"""Kinds of file systems whose locks other machines may not see."""


def is_on_network(folder: Path) -> bool:
    """By the kind of the file system that is mounted there."""
    real, kind, longest = os.path.realpath(folder), "", -1
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode("latin-1", "surrogateescape").decode("unicode_escape")
        if os.path.commonpath([point, real]) == point and len(point) >= longest:
            kind, longest = after.split()[0].partition(".")[0], len(point)
    return kind in NETWORK


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    folder = make_temporary_folder(prefix)
    try:
        yield Path(folder)
    finally:
        remove_temporary_folder(folder)


def make_temporary_folder(prefix: str, most: int | None = None) -> str:
    """`prefix` is one of PREFIXES. To be removed by `remove_temporary_folder`. Where TMPDIR would make a name of more
    than `most` characters, the folder is in /tmp, if that can be written."""
    is_long = most is not None and len(tempfile.gettempdir()) + len(prefix) + len("/12345678") > most
    root = SHORT_ROOT if is_long and os.access(SHORT_ROOT, os.W_OK) else None
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, dir=root)
        if lock_folder(Path(folder)):
            return folder


def remove_temporary_folder(folder: str) -> None:
    """By `rm`, as folders may be nested more deeply than Python can follow. What takes too long is left to a later
    start."""
    limit_s = REMOVAL_TIMEOUT_S
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL, timeout=limit_s)
        if os.path.lexists(folder):
            # Another user may have made a link of this name since: `find` follows none.
            writable = ["find", folder, "-type", "d", "!", "-perm", "-700", "-execdir", "chmod", "u+rwx", "{}", ";"]
            environment = {**os.environ, "PATH": os.defpath}  # it refuses a PATH with other folders than absolute ones
            with contextlib.suppress(OSError):  # a small machine may not have it
                subprocess.run(writable, check=False, stderr=subprocess.DEVNULL, timeout=limit_s, env=environment)
            subprocess.run(["rm", "-rf", "--", folder], check=False, timeout=limit_s)
    unlock_folder(Path(folder))


def remove_abandoned_folders() -> None:
    """Removes those of this user, and of the users of root's sandboxes, that no process holds. None on a network file
    system, where a process of another machine may hold one unseen."""
    roots = {Path(tempfile.gettempdir()), *([Path(SHORT_ROOT)] if os.access(SHORT_ROOT, os.R_OK | os.X_OK) else [])}
    roots = {root for root in roots if not is_on_network(root)}
    for folder in [root / name for root in roots for name in os.listdir(root) if name.startswith(PREFIXES)]:
        try:
            owner = folder.lstat().st_uid
        except FileNotFoundError:
            continue
        if owner == os.getuid() or owner in unused_users():
            with hold_if_free(folder, owner) as is_free:
                if is_free:
                    remove_temporary_folder(str(folder))
