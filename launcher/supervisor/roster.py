"""The processes of a run: those of the plan, those that run now, and how often each was started."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from areal_like.process.identity import Identity
from launcher.agent.base import NodeAgent, ProcessExit
from launcher.plan.plan import Process
from launcher.supervisor.launcher_pulse import LAUNCHER_PULSE


@dataclass
class RunningProcess:
    """`log` is empty without a file."""

    identity: Identity
    log: str
    agent: NodeAgent
    started: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    def last_lines(self, count: int) -> list[str]:
        return self.agent.last_lines(self.identity.name, count)


class Roster:
    """Starts and ends processes of the plan through the agent of their node."""

    def __init__(self, processes: Sequence[Process], agent: NodeAgent) -> None:
        self.processes = {each.name: each for each in processes if each.role not in ("guardian", "launcher")}
        self.running: dict[str, RunningProcess] = {}
        self.ready: set[Identity] = set()
        """Starts that have published their address."""
        self.agent = agent
        self._starts: dict[str, Identity] = {}

    def names(self, *roles: str) -> list[str]:
        """The planned processes of these roles, running or not, in the plan's order."""
        return [name for name, process in self.processes.items() if process.role in roles]

    def start(self, name: str, attempt: int) -> RunningProcess:
        """A further start within one attempt is the next incarnation."""
        process, last = self.processes[name], self._starts.get(name)
        again = last is not None and last.attempt == attempt
        identity = Identity(process.role, process.index, attempt, last.incarnation + 1 if last and again else 1)
        self._starts[name] = identity
        started = self.running[name] = RunningProcess(identity, self.agent.start(process, identity), self.agent)
        return started

    def exits(self) -> list[ProcessExit]:
        """Processes that ended since the last call, except those that `kill` did not wait for any longer."""
        exits = [exited for exited in self.agent.exits() if exited.name in self.running]
        if exits:
            LAUNCHER_PULSE.hold()
        for exited in exits:
            del self.running[exited.name]
        return exits

    def end(self) -> None:
        """Ends all, with a moment for each to end by itself."""
        self.agent.end(list(self.running))
        self.running.clear()

    def kill(self, names: Iterable[str] | None = None) -> None:
        """All without `names`."""
        chosen = list(self.running if names is None else names)
        self.agent.kill(chosen)
        for name in chosen:
            self.running.pop(name, None)
