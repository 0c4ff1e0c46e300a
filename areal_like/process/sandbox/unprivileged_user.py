"""The user as whom a program runs if this process is root: limits of processes do not hold root, and another user has
no right to signal, trace or read what belongs to this one."""

import itertools
import os
from pathlib import Path

CAP_SETGID, CAP_SETUID, CAP_NET_ADMIN, CAP_SYS_ADMIN = 6, 7, 12, 21
PROGRAMS_AT_ONCE = 4096
"""Of one process; each has a user of its own. Fewer where few users exist."""
LEAST_PROCESSES = 64
"""So many have users of their own in any case."""

_counter = itertools.count()


def has_capabilities(*numbers: int) -> bool:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = int(text.partition("CapEff:")[2].split()[0], 16)
    return all(effective >> number & 1 for number in numbers)


def unused_user() -> int | None:
    """A user and group id that nobody else has, from the middle of those that exist here; None if this process cannot
    change its user."""
    users = unused_users()
    if not users or not has_capabilities(CAP_SETUID, CAP_SETGID):
        return None
    own = min(PROGRAMS_AT_ONCE, len(users) // LEAST_PROCESSES)
    return users[(os.getpid() * own + next(_counter) % own) % len(users)]


def unused_users() -> range:
    """Those among which `unused_user` chooses."""
    first, _, count = map(int, Path("/proc/self/uid_map").read_text(encoding="utf-8").split()[:3])
    if os.geteuid() != 0 or first != 0 or count < 1 << 16:
        return range(0)
    span = min(count, 1 << 31) // 4
    return range(2 * span, 3 * span)
