"""Runs a command, and samples CPU time and memory of each process of its run a few times per second."""

import os
import subprocess
import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

from areal_like.process.identity import PROCESS

TICKS = os.sysconf("SC_CLK_TCK")
LAUNCHER, GUARDIAN = "launcher", "guardian"
POLL_S = 0.25


@dataclass
class Watched:
    """Measurements of a command. `looks`: (time, role -> CPU seconds so far); `seen`: when a role first appeared."""

    began: float
    wall_s: float = 0.0
    cpu_s: float = 0.0
    exit_code: int = 0
    output: str = ""
    looks: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    """The most bytes of each role that are in no file."""

    def cpu_at(self, when: float) -> dict[str, float]:
        """CPU seconds by role in the first sample at or after a time, else in the last sample."""
        if not self.looks:
            return {}
        place = bisect_left([at for at, _ in self.looks], when)
        return self.looks[min(place, len(self.looks) - 1)][1]


def watch(command: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> Watched:
    """Runs a command to its end; interrupts it (SIGINT) after the limit."""
    watched = Watched(began=time.time())
    with (folder / "output.txt").open("w+b") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        ended = threading.Event()
        looking = threading.Thread(target=_poll, args=(process.pid, watched, ended), daemon=True)
        looking.start()
        timer = threading.Timer(limit_s, process.send_signal, [2])
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        watched.wall_s = time.time() - watched.began
        timer.cancel()
        ended.set()
        looking.join()
        process.returncode = watched.exit_code = os.waitstatus_to_exitcode(status)
        watched.cpu_s = usage.ru_utime + usage.ru_stime
        output.seek(0)
        watched.output = output.read().decode(errors="replace")
    return watched


def _poll(root: int, watched: Watched, ended: threading.Event) -> None:
    newest: dict[int, tuple[str, float]] = {}
    roles: dict[int, str] = {}
    while not ended.wait(POLL_S):
        seconds = running_below(root, roles)
        memory: dict[str, int] = {}
        for pid in seconds:
            newest[pid] = roles[pid], seconds[pid]
            memory[roles[pid]] = memory.get(roles[pid], 0) + memory_of(pid)
        for role, size in memory.items():
            watched.memory[role] = max(watched.memory.get(role, 0), size)
        now, by_role = time.time(), dict[str, float]()
        for role, used in newest.values():
            by_role[role] = by_role.get(role, 0.0) + used
            watched.seen.setdefault(role, now)
        watched.looks.append((now, by_role))


def running_below(root: int, roles: dict[int, str]) -> dict[int, float]:
    """CPU seconds of a process and of all below it; adds the roles of new ones."""
    parents, seconds = _processes()
    below = _below(root, parents)
    for pid in below:
        if roles.get(pid, LAUNCHER) == LAUNCHER:
            roles[pid] = _role(pid)  # a forked process has its final role only after exec
    return {pid: seconds[pid] for pid in below}


def _processes() -> tuple[dict[int, int], dict[int, float]]:
    """Parent and CPU seconds of every process of the machine."""
    parents, seconds = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(name)] = int(words[1])
            seconds[int(name)] = (int(words[11]) + int(words[12])) / TICKS
    return parents, seconds


def memory_of(pid: int) -> int:
    """Bytes that are in no file."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def _below(root: int, parents: dict[int, int]) -> set[int]:
    below = {root} & parents.keys()
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below


def _role(pid: int) -> str:
    """The role that the launcher gave a process. Reward processes count for their worker. The guardian is the process
    of the command, which plans the run before it starts the launcher."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return LAUNCHER
    if name == f"areal {GUARDIAN}":
        return GUARDIAN
    prefix = f"{PROCESS}=".encode()
    return next((word[len(prefix) :].decode() for word in words if word.startswith(prefix)), LAUNCHER)
