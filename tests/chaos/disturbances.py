"""What happens to a run: processes are killed and stopped, connections cut, clock and disk go wrong."""

import ctypes
import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from areal_like.process.process_tree import descendants_of, process_info
from tests.chaos.cases import CHECKPOINT, CLOCK, CUT, DISK, GARBAGE, HANG, KILL, SLOW, STOP, Case
from tests.chaos.surroundings import Surroundings, set_clock
from tests.ring.start import Running

APPEARS_S = 60.0
STEP_LIMIT_S = 600.0
"""An engine of others takes minutes to start on a busy machine."""
BACK_S = -3600
SLOW_ANSWERS_S = 1.0
PIDFD_GETFD = 438
CHUNK = 1 << 20
MARKS = {"rewards": "reward_template", "environment": "text_environments/program.py", "agent": "program.py"}
"""In the commands of processes that the workers start."""


class Missed(Exception):
    """The run had ended before, or there was nothing for this to happen to."""


def disturb(case: Case, around: Surroundings, ring: Running) -> str:
    """Waits for the moment of a case, and lets happen what it says. Returns to whom it happened."""
    _wait_for_step(ring, case.step)
    time.sleep(case.delay_s)
    if ring.process.poll() is not None:
        raise Missed("the run had ended")
    if case.action == CLOCK:
        set_clock(around.clock, BACK_S)
        return f"clock {BACK_S} s"
    if case.action == DISK:
        return _fill(ring.directory.parents[1], case.lasts_s)
    if case.action == CHECKPOINT:
        os.kill(ring.process.pid, signal.SIGKILL)
        ring.process.wait(120)
        return _cut_file(ring.directory, case.share)
    if case.target == "engine" and case.action in (SLOW, GARBAGE):
        around.engine.write_text(case.action)
        time.sleep(case.lasts_s)
        around.engine.write_text("")
        return "engine"
    if case.target == "etcd":
        return _disturb_etcd(case, around)
    pid = _appeared(case, ring)
    _ACTIONS[case.action](pid, case)
    return f"process {pid}"


def _wait_for_step(ring: Running, step: int) -> None:
    """Step 0 is the moment when the run has its directory."""
    ends = time.monotonic() + STEP_LIMIT_S
    while time.monotonic() < ends:
        if ring.process.poll() is not None:
            raise Missed("the run had ended")
        if max(ring.steps(), default=0) >= step and (ring.directory / "run.json").exists():
            return
        time.sleep(0.05)
    raise TimeoutError(f"step {step} never came")


def _appeared(case: Case, ring: Running) -> int:
    ends = time.monotonic() + APPEARS_S
    while not (found := targets(ring, case.target)):
        if ring.process.poll() is not None or time.monotonic() > ends:
            raise Missed(f"no process of {case.target}")
        time.sleep(0.02)
    return found[int(case.share * len(found))]


def targets(ring: Running, target: str) -> list[int]:
    """Processes of a role, or of what its processes start."""
    guardian = ring.process.pid
    if target == "guardian":
        return [guardian]
    with suppress(ValueError, OSError):
        launcher = ring.launcher()
        if target == "launcher":
            return [launcher]
        above = {"rewards": "episodes", "agent": "episodes", "environment": "episodes", "engine": "server"}
        of_role = ring.pids(above.get(target, target))
        mains = [pid for pid in of_role if (process := process_info(pid)) and process.parent == launcher]
        if target not in above:
            return sorted(mains)
        below = [each.pid for pid in mains for each in descendants_of(pid) if each.state != "Z"]
        mark = MARKS.get(target, "")
        return sorted(pid for pid in below if mark in _command(pid) and "keeper" not in _command(pid))
    return []


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _disturb_etcd(case: Case, around: Surroundings) -> str:
    assert around.etcd is not None and around.proxy is not None and around.etcd.process is not None
    pid = around.etcd.process.pid
    if case.action == KILL:
        around.etcd.kill()
        time.sleep(case.lasts_s)
        around.etcd.again()
    elif case.action == STOP:
        _stop(pid, case)
    elif case.action == CUT:
        around.proxy.cut()
    else:
        around.proxy.delay_s = SLOW_ANSWERS_S
        time.sleep(case.lasts_s)
        around.proxy.delay_s = 0.0
    return f"etcd, process {pid}"


def _kill(pid: int, _case: Case) -> None:
    _signal(pid, signal.SIGKILL)


def _stop(pid: int, case: Case) -> None:
    _signal(pid, signal.SIGSTOP)
    time.sleep(case.lasts_s)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _hang(pid: int, _case: Case) -> None:
    _signal(pid, signal.SIGSTOP)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Missed(f"process {pid} had ended") from None


def _cut(pid: int, _case: Case) -> None:
    """Ends the connections of a process in the kernel, as a network would that has lost them."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    try:
        for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
            with suppress(OSError):
                if not os.readlink(entry).startswith("socket:"):
                    continue
                descriptor = libc.syscall(PIDFD_GETFD, handle, int(entry.name), 0)
                if descriptor < 0:
                    number = ctypes.get_errno()
                    if number == errno.EPERM:
                        raise Missed("the kernel does not lend the sockets of other processes")
                    continue
                with socket.socket(fileno=descriptor) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.getpeername()  # not of one that listens
                        connection.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(handle)


_ACTIONS: dict[str, Callable[[int, Case], None]] = {KILL: _kill, STOP: _stop, HANG: _hang, CUT: _cut}


def _fill(disk: Path, lasts_s: float) -> str:
    """With a file, which is removed after so long."""
    filler = disk / "filler"
    ends = time.monotonic() + lasts_s
    with filler.open("wb", buffering=0) as file:
        while time.monotonic() < ends:
            for size in (CHUNK, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
            time.sleep(0.05)
    size = filler.stat().st_size
    filler.unlink()
    return f"a file of {size >> 20} MiB"


def _cut_file(directory: Path, share: float) -> str:
    """Cuts a file of the newest complete checkpoint."""
    complete = sorted(path.parent for path in directory.glob("checkpoints/step_*/.complete"))
    if not complete:
        return "no checkpoint yet"
    files = sorted(path for path in complete[-1].rglob("*") if path.is_file() and path.stat().st_size)
    file = files[int(share * len(files))]
    length = int(share * 7919 % 1 * file.stat().st_size)
    os.truncate(file, length)
    return f"{file.relative_to(directory)} cut to {length} bytes"
