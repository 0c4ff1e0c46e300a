"""Starts, watches and kills the processes of a run on this machine."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import areal_like
from areal_like.config.redact import SECRET
from areal_like.process.identity import PROCESS, RUN_DIR, RUN_ID, TOKEN, Identity
from areal_like.process.port_lease import PortLease, lease_port
from areal_like.process.process_tree import kill_orphans
from areal_like.process.run import Run
from areal_like.process.shared_segments import remove_recorded
from launcher.agent.managed_process import ManagedProcess, ProcessExit, log_name
from launcher.plan.plan import PORT, Process

TERMINATE_TIMEOUT_S = 3.0
MASTER_PORT = "MASTER_PORT"


class LocalAgent:
    """Starts the processes of a plan, filling in ports, the run's token, attempt and incarnation."""

    def __init__(
        self,
        run: Run,
        processes: Sequence[Process],
        secret: str,
        write_logs: bool,
    ) -> None:
        self.processes = {p.name: p for p in processes if p.role not in ("guardian", "launcher")}
        self.alive: dict[str, ManagedProcess] = {}
        self._run, self._secret, self._write_logs = run, secret, write_logs
        self._variables = _import_path()
        self._starts: dict[str, Identity] = {}
        self._leases: dict[str, PortLease] = {}

    def names(self, *roles: str) -> list[str]:
        """The planned processes of these roles, alive or not, in the plan's order."""
        return [name for name, process in self.processes.items() if process.role in roles]

    def start(self, name: str, attempt: int) -> ManagedProcess:
        """Starts a process; a further start within one attempt is its next incarnation."""
        process, last = self.processes[name], self._starts.get(name)
        again = last is not None and last.attempt == attempt
        identity = Identity(process.role, process.index, attempt, last.incarnation + 1 if last and again else 1)
        self._starts[name] = identity
        child = ManagedProcess(
            self._filled(process, identity), identity, self._run.directory, self._run.cwd, self._variables
        )
        self.alive[name] = child
        return child

    def exits(self) -> list[ProcessExit]:
        """Processes that ended since the last call. Killed ones come first: they are causes, not consequences."""
        exits = [exited for child in list(self.alive.values()) if (exited := child.exited()) is not None]
        for exited in exits:
            self._forget(exited.child)
        return sorted(exits, key=lambda exited: (exited.code >= 0, exited.time))

    def kill(self, names: Iterable[str]) -> None:
        """Kills them, and every process that they started; returns when all have ended."""
        chosen = [self.alive[name] for name in names if name in self.alive]
        for child in chosen:
            child.send(signal.SIGKILL)
        for child in chosen:
            child.kill()
            self._forget(child)

    def end(self, names: Iterable[str]) -> None:
        """Sends SIGTERM, and kills them after `TERMINATE_TIMEOUT_S`."""
        chosen = [self.alive[name] for name in names if name in self.alive]
        for child in chosen:
            child.send(signal.SIGTERM)
        until = time.monotonic() + TERMINATE_TIMEOUT_S
        while time.monotonic() < until and any(child.exited() is None for child in chosen):
            time.sleep(0.02)
        self.kill(child.identity.name for child in chosen)

    def send(self, names: Iterable[str], sign: int) -> None:
        for name in names:
            if name in self.alive:
                self.alive[name].send(sign)

    def pids(self) -> set[int]:
        return {child.pid for child in self.alive.values()}

    def new_master_port(self) -> None:
        """Leases another MASTER_PORT: the last one was taken by another process."""
        self._release(MASTER_PORT)

    def close(self) -> None:
        for held in self._leases.values():
            held.close()

    def _forget(self, child: ManagedProcess) -> None:
        self.alive.pop(child.identity.name, None)
        marks = {PROCESS: child.identity.name, RUN_DIR: str(self._run.directory)}
        kill_orphans(child.pid, marks, self.pids())
        remove_recorded(self._run.memory, child.identity.file_name)
        child.close()

    def _filled(self, process: Process, identity: Identity) -> Process:
        """Replaces the plan's placeholders. Other secrets are in the launcher's environment already."""
        env = {name: value for name, value in process.env.items() if value != SECRET}
        env[TOKEN] = self._secret
        env[RUN_ID] = self._run.run_id
        env |= {name: str(self._port(MASTER_PORT)) for name, value in env.items() if value == PORT}
        log = str(Path(process.log).with_name(log_name(identity))) if self._write_logs else ""
        return replace(process, env=env, log=log)

    def _port(self, holder: str) -> int:
        if holder not in self._leases:
            self._leases[holder] = lease_port()
        return self._leases[holder].port

    def _release(self, holder: str) -> None:
        held = self._leases.pop(holder, None)
        if held is not None:
            held.close()


def _import_path() -> dict[str, str]:
    """PYTHONPATH with which all processes import this package, wherever they run."""
    folder = str(Path(areal_like.__file__).resolve().parents[1])
    before = os.environ.get("PYTHONPATH", "")
    if folder in [str(Path(entry).resolve()) for entry in sys.path if "site-packages" in entry]:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [folder, before]))}
