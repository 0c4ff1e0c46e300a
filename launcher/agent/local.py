"""Starts, watches and ends the processes of a run on this machine."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import areal_like
from areal_like.config.redact import SECRET
from areal_like.process.child_process import kill_all, reap_leftovers
from areal_like.process.entrypoint import stacks_path
from areal_like.process.identity import RUN_ID, SERVER, Identity
from areal_like.process.port_lease import PortLease, lease_port
from areal_like.process.process_tree import cpu_seconds, has_handler, process_info
from areal_like.process.pulse import (
    COMPILING,
    GENERATING,
    LOADING,
    PUBLISHING,
    SAVING,
    STEP,
    UPDATING,
    SlotSample,
    read_slots,
)
from areal_like.process.run import Run
from areal_like.process.scrubbed_output import known_secrets
from areal_like.process.shared_segments import remove_recorded
from areal_like.process.tree_usage import states_of_tree, thread_work, tree_work
from launcher.agent.base import STOPPED, FailureNote, ProcessExit, ProcessSample
from launcher.agent.hang_report import HangReport, HungProcess
from launcher.agent.log_rotation import OLDER, LogRotation
from launcher.agent.managed_process import ManagedProcess, log_name
from launcher.plan.plan import PORT, Process

TERMINATE_TIMEOUT_S = 3.0
STACKS_S = 0.5
"""What a process may take to write its stack traces."""
REAP_INTERVAL_S = 1.0
SIZES_INTERVAL_S = 5.0
MASTER_PORT = "MASTER_PORT"
HUNG = "hung"
"""Kind of the failure note of a process that was killed because it made no progress."""


class LocalAgent:
    """The `NodeAgent` of this machine."""

    def __init__(self, run: Run, secret: str, write_logs: bool, hidden: Iterable[str] = ()) -> None:
        """`hidden`: beside the secrets of the environment, what no log may hold."""
        self._run, self._secret, self._write_logs = run, secret, write_logs
        self._hidden = tuple({*known_secrets(), secret, *hidden})
        self._alive: dict[str, ManagedProcess] = {}
        self._variables = _import_path()
        self._leases: dict[str, PortLease] = {}
        self._reaped_at = self._sizes_at = 0.0
        self._hang_report: HangReport | None = None
        self._rotation = LogRotation()

    def start(self, process: Process, identity: Identity) -> str:
        filled = self._filled(process, identity)
        self._alive[identity.name] = ManagedProcess(
            *(filled, identity, self._run.directory, self._run.cwd, self._variables, self._secret, self._hidden)
        )
        return filled.log

    def exits(self) -> list[ProcessExit]:
        """Killed ones come first: they are causes, not consequences."""
        exits = [exited for child in list(self._alive.values()) if (exited := child.exited()) is not None]
        self._forget([self._alive[exited.name] for exited in exits])
        if time.monotonic() - self._reaped_at > REAP_INTERVAL_S:
            self._reaped_at = time.monotonic()
            reap_leftovers()
            for child in self._alive.values():
                child.scrubber.scrub()
        if time.monotonic() - self._sizes_at > SIZES_INTERVAL_S:
            self._sizes_at = time.monotonic()
            self._rotate_logs()
        return sorted(exits, key=lambda exited: (exited.code >= 0, exited.time))

    def signal(self, names: Iterable[str], number: int) -> None:
        for child in self._chosen(names):
            child.process.signal(number)

    def end(self, names: Iterable[str]) -> None:
        chosen = self._chosen(names)
        for child in chosen:
            child.process.signal(signal.SIGTERM)
        until = time.monotonic() + TERMINATE_TIMEOUT_S
        for child in chosen:
            child.process.wait(until - time.monotonic())
        self.kill(child.identity.name for child in chosen)

    def kill(self, names: Iterable[str]) -> None:
        self._forget(self._chosen(names))

    def last_lines(self, name: str, count: int) -> list[str]:
        return self._alive[name].last_lines(count) if name in self._alive else []

    def cpu_seconds(self) -> dict[str, float]:
        return cpu_seconds({name: child.process.pid for name, child in self._alive.items()})

    def samples(self) -> list[ProcessSample]:
        return [_sample(name, child) for name, child in self._alive.items()]

    def begin_hang_report(self, folder: str, culprits: Sequence[str]) -> None:
        processes = {}
        for name, child in self._alive.items():
            stacks = self._run.logs / f"{child.identity.file_name}.stacks"
            slots = read_slots(child.page)
            processes[name] = HungProcess(child.identity.file_name, child.process.pid, stacks, slots)
        self._hang_report = HangReport(Path(folder), processes, culprits)

    def hang_report_is_done(self) -> bool:
        return self._hang_report is None or self._hang_report.is_done

    def kill_hung(self, name: str, start: str, message: str) -> None:
        for child in self._chosen([name]):
            if child.identity.start_name == start:
                child.hung = FailureNote(time.time(), message, HUNG)
                child.process.signal(signal.SIGKILL)

    def dump_stacks(self) -> None:
        for child in self._alive.values():
            if has_handler(child.process.pid, signal.SIGUSR2):
                child.process.signal(signal.SIGUSR2)
        time.sleep(STACKS_S)

    def new_master_port(self) -> None:
        held = self._leases.pop(MASTER_PORT, None)
        if held is not None:
            held.close()

    def close(self) -> None:
        for held in self._leases.values():
            held.close()

    def _chosen(self, names: Iterable[str]) -> list[ManagedProcess]:
        return [self._alive[name] for name in names if name in self._alive]

    def _forget(self, children: Sequence[ManagedProcess]) -> None:
        """After they have ended, or to kill them. One that does not die, as it hangs in the kernel, may hold what its
        successor needs, and is kept until it ends."""
        kill_all([child.process for child in children])
        for child in children:
            if child.process.exit_code() is not None:
                del self._alive[child.identity.name]
                remove_recorded(self._run.memory, child.identity.file_name)
                child.close()

    def _rotate_logs(self) -> None:
        most = self._run.config.log.max_mb << 20
        for child in self._alive.values():
            child.cut_output(most)
            self._rotation.rotate(stacks_path(self._run, child.identity), most)
            if self._rotation.rotate(child.log, most):
                child.scrubber.rotated(f"{child.log}{OLDER}")

    def _filled(self, process: Process, identity: Identity) -> Process:
        """Replaces the plan's placeholders. Other secrets are in the launcher's environment already."""
        env = {name: value for name, value in process.env.items() if value != SECRET}
        env[RUN_ID] = self._run.run_id
        env |= {name: str(self._port(MASTER_PORT)) for name, value in env.items() if value == PORT}
        log = str(Path(process.log).with_name(log_name(identity))) if self._write_logs else ""
        return replace(process, env=env, log=log)

    def _port(self, holder: str) -> int:
        if holder not in self._leases:
            self._leases[holder] = lease_port(keeps_bound=True)
        return self._leases[holder].port


def _sample(name: str, child: ManagedProcess) -> ProcessSample:
    pid, slots = child.process.pid, read_slots(child.page)
    if not slots:  # it may hang before its first phase, or after its last one
        slots = (SlotSample(0, LOADING, 0, 0, pid, inner=LOADING),)
    work = {}
    for slot in slots:
        if slot.inner in (LOADING, COMPILING, UPDATING):
            work[slot.number] = tree_work(pid)
        elif slot.inner in (PUBLISHING, SAVING, STEP, GENERATING):  # other threads go on meanwhile
            work[slot.number] = thread_work(pid, slot.thread) if slot.thread else tree_work(pid)
    if child.identity.role == SERVER:  # its engine may be processes that it has started
        own, *below = states_of_tree(pid)
        state = next((each for each in below if each in STOPPED), own)
    else:
        info = process_info(pid)
        state = "" if info is None else info.state
    return ProcessSample(name, child.identity.start_name, state, slots, work)


def _import_path() -> dict[str, str]:
    """PYTHONPATH with which all processes import this package, wherever they run."""
    folder = str(Path(areal_like.__file__).resolve().parents[1])
    before = os.environ.get("PYTHONPATH", "")
    if folder in [str(Path(entry).resolve()) for entry in sys.path if "site-packages" in entry]:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [folder, before]))}
