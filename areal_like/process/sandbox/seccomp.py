"""The filter of system calls: a program of the kernel's packet filter, by ctypes.

It refuses what a program that only computes has no use for: tracing, mounting, namespaces, modules, keys, clocks,
sockets (also those of Unix, by which services of the machine listen), and memory that no limit counts.
"""

import ctypes
import errno
import os
import platform
import struct

from areal_like.process.sandbox.system_calls import MACHINES, NEWEST, call_numbers

REFUSED = (
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "process_madvise", "process_mrelease"),
    *("migrate_pages", "move_pages", "setpriority", "sched_setscheduler", "sched_setparam", "sched_setattr"),
    *("ioprio_set", "perf_event_open"),
    # what is mounted, and namespaces
    *("mount", "umount2", "pivot_root", "chroot", "mount_setattr", "move_mount", "open_tree", "fsopen", "fsmount"),
    *("fsconfig", "fspick", "setns", "unshare", "mknod", "mknodat", "open_by_handle_at", "name_to_handle_at"),
    *("fanotify_init", "quotactl", "quotactl_fd", "swapon", "swapoff"),
    # the machine
    *("bpf", "userfaultfd", "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module"),
    *("finit_module", "delete_module", "reboot", "acct", "syslog", "settimeofday", "clock_settime", "clock_adjtime"),
    *("adjtimex", "sethostname", "setdomainname", "iopl", "ioperm", "lookup_dcookie", "vhangup", "personality"),
    # the network, and memory outside of processes and files
    *("socket", "memfd_create", "memfd_secret", "mq_open", "shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv"),
    *("msgctl", "semget", "semop", "semtimedop", "semctl", "setsockopt", "setxattr", "lsetxattr", "fsetxattr"),
    # what others do with files, and their disks
    *("inotify_init", "inotify_init1", "inotify_add_watch", "sync", "syncfs"),
)
ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""As on an older kernel: their arguments lie in memory, which a filter cannot read."""

ATTRIBUTES = (
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "truncate"),
    *("removexattr", "lremovexattr", "fremovexattr"),
    *("utime", "utimes", "futimesat", "utimensat"),
)
"""Changes of files that Landlock does not know. Refused where a program sees the machine's files."""
ON_OTHERS = ("rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill", "pidfd_send_signal", "setpgid")
ON_ITSELF = ("kill", "tgkill", "sched_setaffinity")
"""Allowed on the process itself and on its group. The former are refused; both where a program sees the machine's
processes."""
SIGNALS_AN_OWNER = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}
"""Requests by which a descriptor sends a signal of one's choice to any process of the same user."""
SOCKET_KIND, STREAM = 0xF, 1
"""A socket of a pair that is no stream can send to any address, and so to services of the machine."""

STARTS_AND_SIGNALS = (
    *("fork", "vfork", "clone", "execve", "execveat", "kill", "tkill", "tgkill", "rt_sigqueueinfo"),
    *("rt_tgsigqueueinfo", "pidfd_send_signal", "setsid"),
)
"""What a process that only computes has no use for."""

NAMESPACES = 0x7E020000
"""Flags of clone that make any."""

ARCHITECTURES = dict(zip(MACHINES, (0xC000003E, 0xC00000B7), strict=True))
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, KEEP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


def build_filter(own_pid: int | None, machine: str = platform.machine()) -> bytes:
    """`own_pid`: of a program that sees the processes and files of the machine; None: they are hidden from it."""
    shared = own_pid is not None
    refused = REFUSED + ((ATTRIBUTES + ON_OTHERS) if shared else ())
    steps = [
        *(_step(LOAD, ARCHITECTURE), _step(EQUAL, ARCHITECTURES[machine], 1, 0), _step(RETURN, KILL)),
        *(_step(LOAD, NUMBER), _step(AT_LEAST, NEWEST + 1, 0, 1), _step(RETURN, REFUSE | errno.ENOSYS)),
    ]
    for names, error in ((refused, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for number in call_numbers(names, machine):
            steps += [_step(EQUAL, number, 0, 1), _step(RETURN, REFUSE | error)]
    refuse, allow = _step(RETURN, REFUSE | errno.EPERM), _step(RETURN, ALLOW)
    for number in call_numbers(("clone",), machine):
        steps += _if_called(number, [_step(ANY_BIT, NAMESPACES, 0, 1), refuse, allow])
    for number in call_numbers(("prlimit64",), machine):
        steps += _if_called(number, [_step(EQUAL, 0, 1, 0), refuse, allow])
    for number in call_numbers(ON_ITSELF if shared else (), machine):
        steps += _if_called(number, [_step(EQUAL, own_pid or 0, 2, 0), _step(EQUAL, 0, 1, 0), refuse, allow])
    if shared:
        for name, requests in SIGNALS_AN_OWNER.items():
            found = [step for each in requests for step in (_step(EQUAL, each, 0, 1), refuse)]
            for number in call_numbers((name,), machine):
                steps += _if_called(number, [*found, allow], SECOND_ARGUMENT)
        for number in call_numbers(("socketpair",), machine):
            kind = [_step(KEEP_BITS, SOCKET_KIND), _step(EQUAL, STREAM, 1, 0), refuse, allow]
            steps += _if_called(number, kind, SECOND_ARGUMENT)
    return b"".join((*steps, allow))


def build_compute_filter(machine: str = platform.machine()) -> bytes:
    """In addition: no further process or thread, no signal."""
    steps = [_step(LOAD, NUMBER)]
    for number in call_numbers(STARTS_AND_SIGNALS, machine):
        steps += [_step(EQUAL, number, 0, 1), _step(RETURN, REFUSE | errno.EPERM)]
    return b"".join((*steps, _step(RETURN, ALLOW)))


def _if_called(number: int, steps: list[bytes], argument: int = FIRST_ARGUMENT) -> list[bytes]:
    """The steps see an argument, and must return."""
    return [_step(EQUAL, number, 0, len(steps) + 1), _step(LOAD, argument), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def apply_filter(libc: ctypes.CDLL, steps: bytes) -> None:
    """For this process and all that it starts; it must have given up new privileges."""
    program = _Program(len(steps) // 8, steps)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"a filter of system calls: {os.strerror(ctypes.get_errno())}")
