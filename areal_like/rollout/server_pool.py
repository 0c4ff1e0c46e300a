"""The servers of the rollout loop, their load, and the choice of the server for a group."""

from dataclasses import dataclass

from areal_like.process.patience import SilenceLimits
from areal_like.rollout.groups import Lease
from areal_like.weights.versions import NO_VERSION


@dataclass(eq=False)
class PooledServer:
    """`version` is of the weights that it serves; -1 before the first ones."""

    name: str
    address: str
    version: int = NO_VERSION
    groups: int = 0
    tokens: int = 0
    """Outstanding training groups, and the most tokens of all outstanding groups."""
    silent_s: float = 0.0
    """How long it has had requests and has not gone on."""


class ServerPool:
    """Tracks the load of each server. Only servers with weights get groups."""

    def __init__(self, schedule_policy: str, max_concurrent: int, num_training: int | None = None) -> None:
        """`num_training`: servers from this index on are for evaluations alone; None: there are none such."""
        self.schedule_policy, self.max_concurrent, self._num_training = schedule_policy, max_concurrent, num_training
        self.servers: dict[str, PooledServer] = {}
        self.evaluators = self if num_training is None else ServerPool(schedule_policy, max_concurrent)
        """The servers that evaluate: those for evaluations alone, if there are any."""
        self._turn = 1
        self._has_served = False

    @property
    def has_evaluators(self) -> bool:
        return self.evaluators is not self

    @property
    def awaits_evaluators(self) -> bool:
        """Whether the servers for evaluations alone have not had weights yet: they may take longer to start."""
        return self.has_evaluators and not self.evaluators._has_served

    def of(self, name: str) -> "ServerPool":
        """The pool that the server is in."""
        evaluates = self._num_training is not None and int(name.rpartition("/")[2]) >= self._num_training
        return self.evaluators if evaluates else self

    def add(self, name: str, address: str) -> None:
        self.of(name).servers[name] = PooledServer(name, address)

    def use_service(self, address: str) -> None:
        """A service that answers in place of servers; it has no weights of a run."""
        self.add("service/0", address.strip().rstrip("/"))
        self.set_version("service/0", 0)

    def remove(self, name: str) -> "ServerPool":
        """Returns the pool that it was in."""
        self.of(name).servers.pop(name, None)
        return self.of(name)

    def set_version(self, name: str, version: int) -> None:
        pool = self.of(name)
        pool.servers[name].version, pool._has_served = version, True

    @property
    def ready(self) -> list[PooledServer]:
        """Servers with weights, by number."""
        served = (server for server in self.servers.values() if server.version != NO_VERSION)
        return sorted(served, key=lambda server: (len(server.name), server.name))

    @property
    def served_version(self) -> int:
        """The oldest version served; -1 without a server."""
        return min((server.version for server in self.servers.values() if server.version >= 0), default=NO_VERSION)

    def choose(self, by_share: bool = True, other_than: str = "", version: int | None = None) -> PooledServer | None:
        """The server for the next group; None if none is free. `by_share`: no server gets more than its share of
        `max_concurrent`. `other_than` is an address to avoid; servers with `version` are preferred."""
        free = [server for server in self.ready if server.address != other_than]
        free = [server for server in free if server.version == version] or free
        if by_share and free:
            share = -(-self.max_concurrent // len(free))
            free = [server for server in free if server.groups < share]
        if not free:
            return None
        if self.schedule_policy == "least_loaded":
            return min(free, key=lambda server: server.tokens)
        return free[self._turn % len(free)]

    def address(self, name: str) -> str:
        """Empty if the server is gone."""
        server = self.of(name).servers.get(name)
        return server.address if server else ""

    def heard(self, name: str, silent_s: float) -> None:
        if (server := self.of(name).servers.get(name)) is not None:
            server.silent_s = silent_s

    def hangs(self, lease: Lease, silence: SilenceLimits) -> bool:
        """Whether it is the server that fails, and not this group. It will be replaced."""
        server = self.of(lease.server).servers.get(lease.server)
        is_same = server is not None and server.address == lease.address
        return server is not None and is_same and silence.least_s <= server.silent_s < silence.most_s

    def replace(self, lease: Lease, failed_address: str) -> str | None:
        """Gives a lease another server: its address, None if none is free."""
        server = self.of(lease.server).choose(by_share=False, other_than=failed_address)
        if server is None:
            return None
        self.release(lease)
        lease.server, lease.address = server.name, server.address
        self.reserve(lease)
        return server.address

    def reserve(self, lease: Lease) -> None:
        self.of(lease.server)._turn += 1
        self._count(lease, 1)

    def release(self, lease: Lease) -> None:
        self._count(lease, -1)

    def _count(self, lease: Lease, sign: int) -> None:
        """Evaluations do not count in a server's share of groups, but their tokens count as load."""
        server = self.of(lease.server).servers.get(lease.server)
        if server is not None and server.address == lease.address:
            server.groups += sign * (lease.group.evaluation is None)
            server.tokens += sign * lease.tokens
