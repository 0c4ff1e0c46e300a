"""Runs inside the sandbox before the program: gives up one right after the other, and becomes the program.

It imports the standard library alone, as nothing else can be seen there.
"""

import ctypes
import json
import math
import os
import resource
import signal
import struct
from pathlib import Path
from typing import Any

from areal_like.process.sandbox.landlock import apply_landlock
from areal_like.process.sandbox.seccomp import apply_filter, build_filter

STARTED = b"started\n"
"""What it writes to the descriptor `status` at the end; anything else is why it failed."""

BOOT = f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import main; main(int(sys.argv[2]))"
"""For `python -c`, with a folder that has this package, and the descriptor of the orders."""

PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 38, 47, 2
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION = 0x20080522
MIN_DESCRIPTORS = 64


def main(descriptor: int) -> None:
    with open(descriptor, "rb") as stream:
        orders = json.load(stream)
    status = orders["status"]
    os.set_inheritable(status, False)
    folders = {"HOME": orders["folder"], "TMPDIR": orders["folder"]}
    try:
        confine(orders)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # which Python has changed, or whoever started all of this
        os.write(status, STARTED)
        os.execve(orders["command"][0], orders["command"], orders["env"] | folders)
    except BaseException as fault:
        os.write(status, f"{type(fault).__name__}: {fault}".encode())
        os._exit(1)


def confine(orders: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getpgrp() != os.getpid():  # its keeper has given it a group
        os.setsid()  # so that a signal to its group reaches nothing else
    os.umask(0o077)
    if orders["user"] is not None:
        _change_user(libc, orders["user"], orders["reads_closed_folders"])
    os.chdir(orders["folder"])
    for name, content in orders["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")
    _limit(orders["limits"], orders["other_tasks"])
    _prctl(libc, PR_SET_NO_NEW_PRIVS, 1)
    seen = orders["seen"]
    if seen is not None:
        apply_landlock(libc, seen["readable"], seen["devices"], orders["folder"])
    apply_filter(libc, build_filter(None if seen is None else os.getpid()))


def _limit(limits: dict[str, float], other_tasks: int) -> None:
    """`other_tasks`: processes and threads of the same user that are not the program's."""
    tasks = int(limits["processes"]) + other_tasks
    cpu_s = math.ceil(limits["cpu_s"])
    memory, files = (int(limits[name] * size) for name, size in (("memory_gb", 1 << 30), ("files_mb", 1 << 20)))
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, files, files),
        (resource.RLIMIT_NPROC, tasks, tasks),
        (resource.RLIMIT_NOFILE, MIN_DESCRIPTORS, MIN_DESCRIPTORS),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        allowed = resource.getrlimit(kind)[1]
        top = hard if allowed == resource.RLIM_INFINITY else min(hard, allowed)
        resource.setrlimit(kind, (min(soft, top), top))


def _change_user(libc: ctypes.CDLL, user: int, reads_closed_folders: bool) -> None:
    """`reads_closed_folders`: it keeps the right to pass folders that are closed to others, such as /root."""
    if reads_closed_folders:
        _prctl(libc, PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if reads_closed_folders:
        kept = 1 << CAP_DAC_READ_SEARCH
        header, sets = struct.pack("=Ii", CAPABILITY_VERSION, 0), struct.pack("=6I", kept, kept, kept, 0, 0, 0)
        if libc.capset(header, sets) != 0:
            raise OSError(ctypes.get_errno(), f"capabilities: {os.strerror(ctypes.get_errno())}")
        _prctl(libc, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH)


def _prctl(libc: ctypes.CDLL, option: int, *arguments: int) -> None:
    values = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *values) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")
