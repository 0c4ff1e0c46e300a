"""Landlock: the kernel lets a process open only what lies below the paths that it named before."""

import ctypes
import os
import struct
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
GET_VERSION = 1
BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READ = EXECUTE | READ_FILE | READ_DIR
MAKE_DEVICES = 1 << 6 | 1 << 11
"""Files of character and block devices."""
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14
"""The rights that a file can have; 1 << 14 is to truncate."""
NEEDED_VERSION = 3
"""The first with the right to truncate: before it, whoever may read a file may also empty it."""
NUM_RIGHTS = {3: 15, 4: 15}
"""By version; from the 5th on there is one more, to control devices."""
NETWORK_FROM = 4
BIND_AND_CONNECT = 3
SCOPES_FROM = 6
ABSTRACT_SOCKETS_AND_SIGNALS = 3
"""Of processes that are not confined in the same way."""


def landlock_version() -> int:
    """0 where the kernel does not have it."""
    version: int = ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION)
    return max(version, 0)


def apply_landlock(libc: ctypes.CDLL, readable: Iterable[str], devices: Iterable[str], own: str) -> None:
    """For this process and all that it starts: it reads below `readable`, uses `devices`, and writes below `own`. It
    must have given up new privileges."""
    version = landlock_version()
    everything = (1 << NUM_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=Q", everything)
    if version >= NETWORK_FROM:
        attributes += struct.pack("=Q", BIND_AND_CONNECT)
    if version >= SCOPES_FROM:
        attributes += struct.pack("=Q", ABSTRACT_SOCKETS_AND_SIGNALS)
    rules = _call(libc, CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    allowed = [(path, READ) for path in readable]
    allowed += [(path, READ_FILE | WRITE_FILE) for path in devices]
    allowed.append((own, everything & ~MAKE_DEVICES))
    for path, rights in allowed:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        of_path = rights if os.path.isdir(path) else rights & FILE_ONLY
        _call(libc, ADD_RULE, rules, BENEATH, struct.pack("=Qi", of_path, descriptor), 0)
        os.close(descriptor)
    _call(libc, RESTRICT_SELF, rules, 0)
    os.close(rules)


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    returned: int = libc.syscall(number, *arguments)
    if returned < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return returned
