"""The filter of system calls, run as the kernel would: what it refuses on each kind of machine."""

import errno
import fcntl
import re
import socket
import struct
import termios
from pathlib import Path

import pytest

from areal_like.process.sandbox import seccomp
from areal_like.process.sandbox.system_calls import MACHINES, NEWEST, call_numbers

ME = 77
X32 = 0x40000000
"""A bit of calls by another convention, which puts them above NEWEST."""
READ = {"x86_64": 0, "aarch64": 63}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NAMES = (
    *seccomp.REFUSED,
    *seccomp.ABSENT,
    *seccomp.ATTRIBUTES,
    *seccomp.ON_OTHERS,
    *seccomp.ON_ITSELF,
    *seccomp.STARTS_AND_SIGNALS,
    *seccomp.SIGNALS_AN_OWNER,
    "socketpair",
)


def verdict(
    steps: bytes, number: int, argument: int = 0, architecture: int | None = None, second: int = 0
) -> int | None:
    """The error of a call; None if it is allowed. The process is killed for a call of another machine."""
    memory = {seccomp.NUMBER: number, seccomp.ARCHITECTURE: architecture}
    memory |= {seccomp.FIRST_ARGUMENT: argument, seccomp.SECOND_ARGUMENT: second}
    value, index = 0, 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("=HBBI", steps, 8 * index)
        index += 1
        if code == seccomp.LOAD:
            value = memory[operand] or 0
        elif code == seccomp.KEEP_BITS:
            value &= operand
        elif code == seccomp.RETURN:
            assert operand != seccomp.KILL, "killed"
            return None if operand == seccomp.ALLOW else operand & 0xFFFF
        else:
            tests = {
                seccomp.EQUAL: value == operand,
                seccomp.AT_LEAST: value >= operand,
                seccomp.ANY_BIT: value & operand,
            }
            index += if_true if tests[code] else if_false


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("own_pid", [None, ME])
def test_a_filter_refuses_what_it_names_and_allows_the_rest(machine: str, own_pid: int | None) -> None:
    steps, architecture = seccomp.build_filter(own_pid, machine), seccomp.ARCHITECTURES[machine]

    def error(name: str, argument: int = 0, second: int = 0) -> set[int | None]:
        return {verdict(steps, number, argument, architecture, second) for number in call_numbers((name,), machine)}

    assert verdict(steps, READ[machine], 3, architecture) is None
    assert {*error("ptrace"), *error("socket"), *error("mount")} == {errno.EPERM}
    assert error("clone3") == {errno.ENOSYS}
    assert error("clone", 17) == {None}
    assert error("clone", 0x10000000 | 17) == error("clone", 0x20000) == {errno.EPERM}
    assert error("prlimit64") == {None}
    assert error("prlimit64", ME) == {errno.EPERM}
    assert {*error("fchmod"), *error("utimensat"), *error("truncate")} == {errno.EPERM if own_pid else None}
    assert error("kill", ME + 1) == {errno.EPERM if own_pid else None}
    assert error("kill", ME) == error("tgkill", ME) == error("kill", 0) == {None}
    for name, requests in seccomp.SIGNALS_AN_OWNER.items():
        assert {each for one in requests for each in error(name, 3, one)} == {errno.EPERM if own_pid else None}
    assert error("fcntl", 3, fcntl.F_SETFL) == error("ioctl", 3, termios.FIONREAD) == {None}
    assert error("socketpair", socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) == {None}
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK):
        assert error("socketpair", socket.AF_UNIX, kind) == {errno.EPERM if own_pid else None}
    assert verdict(steps, NEWEST + 1, 0, architecture) == errno.ENOSYS
    assert verdict(steps, X32 | 1, 0, architecture) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_what_only_computes_starts_and_signals_nothing(machine: str) -> None:
    steps = seccomp.build_compute_filter(machine)
    for number in call_numbers(seccomp.STARTS_AND_SIGNALS, machine):
        assert verdict(steps, number) == errno.EPERM
    assert verdict(steps, READ[machine]) is None


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_machine_end_the_process(machine: str) -> None:
    with pytest.raises(AssertionError, match="killed"):
        verdict(seccomp.build_filter(None, machine), 0, 0, 0x40000003)


def test_every_name_has_a_number() -> None:
    assert len(call_numbers(tuple(dict.fromkeys(NAMES)), "x86_64")) == len(set(NAMES))


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"{HEADERS[machine]} is not installed")
    numbers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text(encoding="utf-8")))
    known = [name for name in NAMES if name in numbers]
    assert {name: call_numbers((name,), machine) for name in known} == {name: [int(numbers[name])] for name in known}
