"""The servers as the rollout loop sees them, and which of them a group goes to."""

from dataclasses import dataclass

from areal_like.rollout.groups import Lease
from areal_like.weights.versions import NO_VERSION


@dataclass(eq=False)
class PooledServer:
    """`version` is that of the weights it serves; -1 before it has been given any."""

    name: str
    address: str
    version: int = NO_VERSION
    groups: int = 0
    tokens: int = 0
    """What is outstanding there."""


class ServerPool:
    """Keeps count of what is outstanding where. Only servers that were given weights take groups."""

    def __init__(self, schedule_policy: str, max_concurrent: int) -> None:
        self.schedule_policy, self.max_concurrent = schedule_policy, max_concurrent
        self.servers: dict[str, PooledServer] = {}
        self._turn = 0

    def add(self, name: str, address: str) -> None:
        self.servers[name] = PooledServer(name, address)

    def remove(self, name: str) -> None:
        self.servers.pop(name, None)

    def set_version(self, name: str, version: int) -> None:
        self.servers[name].version = version

    @property
    def ready(self) -> list[PooledServer]:
        """In the order of their numbers."""
        told = (server for server in self.servers.values() if server.version != NO_VERSION)
        return sorted(told, key=lambda server: (len(server.name), server.name))

    @property
    def served_version(self) -> int:
        """What even the server that is furthest behind has; -1 without a server."""
        return min((server.version for server in self.servers.values() if server.version >= 0), default=NO_VERSION)

    def choose(self, by_share: bool = True, other_than: str = "", version: int | None = None) -> PooledServer | None:
        """The server for the next group; None where all have their share, or there are none. `other_than` is the
        address of one that does not answer; those that serve `version` come before all others."""
        free = [server for server in self.ready if server.address != other_than]
        free = [server for server in free if server.version == version] or free
        if by_share and free:
            share = -(-self.max_concurrent // len(free))
            free = [server for server in free if server.groups < share]
        if not free:
            return None
        if self.schedule_policy == "least_loaded":
            return min(free, key=lambda server: server.tokens)
        self._turn += 1
        return free[self._turn % len(free)]

    def address(self, name: str) -> str:
        """Empty where the server is gone."""
        server = self.servers.get(name)
        return server.address if server else ""

    def take(self, lease: Lease) -> None:
        self._count(lease, 1)

    def give_back(self, lease: Lease) -> None:
        self._count(lease, -1)

    def _count(self, lease: Lease, sign: int) -> None:
        """Evaluations take no part of a server's share, but the policy reckons with their tokens."""
        server = self.servers.get(lease.server)
        if server is not None and server.address == lease.address:
            server.groups += sign * (lease.group.evaluation is None)
            server.tokens += sign * lease.tokens
