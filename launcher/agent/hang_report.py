"""The report of a hang: the stacks of all processes of a machine, and what each waits for, in a folder of the run."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from areal_like.process.process_tree import descendants_of, has_handler, kill, process_info, threads_of
from areal_like.process.pulse import SlotSample

BUDGET_S = 15.0
FAULTHANDLER_S = 1.0
"""What a process that runs may take to write its own stacks."""
PY_SPY_S = 5.0
POLL_S = 0.05
CULPRIT = "culprit.txt"
NO_STACKS = "no stacks: it is stopped, or not a Python process of ours, and py-spy {}"


class HungProcess:
    """`stacks`: the file to which it appends its stacks on SIGUSR2."""

    def __init__(self, file_name: str, pid: int, stacks: Path, slots: tuple[SlotSample, ...]) -> None:
        self.file_name, self.pid, self.stacks, self.slots = file_name, pid, stacks, slots


class HangReport:
    """Is written in a thread, as what hangs may be a disk."""

    def __init__(self, folder: Path, processes: Mapping[str, HungProcess], culprits: Sequence[str]) -> None:
        self._folder, self._processes, self._culprits = folder, processes, culprits
        self._until = time.monotonic() + BUDGET_S
        self._thread = threading.Thread(target=self._write, name="hang report", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Also when its time is over."""
        return not self._thread.is_alive() or time.monotonic() > self._until

    def _write(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / CULPRIT).write_text("".join(f"{line}\n" for line in self._culprits), encoding="utf-8")
            before = {name: _size(each.stacks) for name, each in self._processes.items()}
            for name, process in self._processes.items():
                (self._folder / f"{process.file_name}.txt").write_text(f"{name}\n{_facts(process)}", encoding="utf-8")
                if has_handler(process.pid, signal.SIGUSR2):
                    kill([process.pid], signal.SIGUSR2)
            until = time.monotonic() + FAULTHANDLER_S
            while time.monotonic() < until and any(
                _size(each.stacks) == before[name] for name, each in self._processes.items()
            ):
                time.sleep(POLL_S)
            for name, process in self._processes.items():
                stacks = _appended(process.stacks, before[name]) or self._by_py_spy(process.pid)
                with (self._folder / f"{process.file_name}.txt").open("a", encoding="utf-8") as file:
                    file.write(f"\n{stacks}\n")
        except OSError as fault:
            print(f"the report of a hang is incomplete: {fault}", flush=True)

    def _by_py_spy(self, pid: int) -> str:
        """Where that is installed and allowed, else why there are none. It does not stop the process."""
        left_s = min(PY_SPY_S, self._until - time.monotonic())
        # It is installed beside this Python, whose folder is on the PATH in an activated environment alone.
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        if (program := shutil.which("py-spy", path=places)) is None or left_s <= 0:
            return NO_STACKS.format("is not installed" if program is None else "had no time left")
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as fault:
            late = f"took more than {left_s:.0f} s"
            return NO_STACKS.format(late if isinstance(fault, subprocess.TimeoutExpired) else f"failed: {fault}")
        return done.stdout or NO_STACKS.format(f"failed: {' '.join(done.stderr.split())}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _appended(path: Path, before: int) -> str:
    if _size(path) == before:
        return ""
    with path.open("rb") as file:
        file.seek(before)
        return file.read().decode("utf-8", "replace")


def _facts(process: HungProcess) -> str:
    lines = [
        f"  {slot.phase}, {slot.counter} times progress"
        + (f"; waits for {slot.what} ({slot.key}, {slot.limit_s:g} s)" if slot.what else "")
        for slot in process.slots
    ]
    for pid in (process.pid, *(each.pid for each in descendants_of(process.pid))):
        lines += _threads(pid)
    return "\n".join(lines) + "\n"


def _threads(pid: int) -> list[str]:
    """State of each thread, and the function of the kernel in which it waits."""
    info = process_info(pid)
    lines = [f"  process {pid}, {'ended' if info is None else f'state {info.state}'}"]
    for task in sorted(threads_of(pid), key=lambda path: int(path.name)):
        name, stat, place = (_read(task / what) for what in ("comm", "stat", "wchan"))
        if stat:
            state, ticks = stat.rpartition(")")[2].split()[0], stat.rpartition(")")[2].split()[11:13]
            used = f"{sum(map(int, ticks))} ticks of CPU time"
            lines.append(f"    thread {task.name} {name.strip()}: {state}, {used}, in {place.strip() or '?'}")
    return lines


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
