"""The weaker sandbox, for machines without namespaces: limits, Landlock and a filter of system calls alone."""

import os
import platform
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_like.process.keeper import kept_command
from areal_like.process.process_tree import descendants_of, kill
from areal_like.process.sandbox.base import Cell, SandboxLimits
from areal_like.process.sandbox.landlock import NEEDED_VERSION, landlock_version
from areal_like.process.sandbox.places import (
    DEVICES,
    INTERPRETER,
    PACKAGE,
    confine_command,
    readable_places,
)
from areal_like.process.sandbox.system_calls import MACHINES
from areal_like.process.sandbox.unprivileged_user import unused_user
from areal_like.process.temporary_folders import SANDBOX, make_temporary_folder, remove_temporary_folder

KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME")
"""The environment of the keeper; the program gets none of it."""


class ResourceLimits:
    name = "rlimits"

    def missing(self) -> str:
        if platform.machine() not in MACHINES:
            return f"the filter of system calls is not built for {platform.machine()}, but for {', '.join(MACHINES)}"
        if landlock_version() < NEEDED_VERSION:
            return "the kernel's Landlock is missing or too old to keep files; it needs Linux 6.2 with lsm=landlock"
        return ""

    def weaknesses(self) -> tuple[str, ...]:
        always = (
            "programs share the machine's namespaces: the kernel's checks of each call are all that holds them",
            "a program can find out whether a file exists, its size and its owner",
            "the files that a program writes are limited in size each, not in number",
        )
        if os.geteuid() != 0:
            return (*always, "programs run as this user, whose processes count against their limit")
        return (
            (*always, f"programs may pass folders closed to others, such as {closed}")
            if (closed := _closed())
            else always
        )

    def open_cell(self, limits: SandboxLimits, readable: Sequence[str]) -> Cell:
        user = unused_user()
        folder = make_temporary_folder(SANDBOX)
        if user is not None:
            os.chown(folder, user, user)
        orders = {
            "user": user,
            "reads_closed_folders": user is not None and bool(_closed(folder)),
            "folder": folder,
            "seen": {"readable": [*readable_places(), *readable], "devices": DEVICES},
            "other_tasks": _tasks_of(os.getuid()) if user is None else 0,
        }
        env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        command = kept_command(confine_command(str(PACKAGE)), 0.0)
        return Cell(command, orders, _kill, env, lambda: remove_temporary_folder(folder))


def _kill(pid: int) -> None:
    """All are stopped before any is killed: what forks all the time would else replace those that are killed. The
    keeper kills them and ends."""
    stopped: set[int] = set()
    while new := {each.pid for each in descendants_of(pid)} - stopped:
        kill(new, signal.SIGSTOP)
        stopped |= new
    kill([pid], signal.SIGTERM)


def _closed(*more: str) -> str:
    """A folder above the interpreter that other users cannot pass; "" if there is none."""
    for path in (INTERPRETER, sys.base_prefix, *more):
        for folder in Path(path).parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                return str(folder)
    return ""


def _tasks_of(user: int) -> int:
    """Processes and threads of a user, which the limit of processes counts as well."""
    tasks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                tasks += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return tasks
