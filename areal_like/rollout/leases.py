"""Who is working on what, and until when."""

import heapq
from collections.abc import Iterator

from areal_like.rollout.groups import Lease


class Leases:
    """Open leases by id and by worker. A lease that is not here is void, whatever a worker may say of it."""

    def __init__(self) -> None:
        self._by_id: dict[str, Lease] = {}
        self._by_worker: dict[str, dict[str, Lease]] = {}
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_id.values()))

    def open(self, lease: Lease) -> None:
        self._by_id[lease.id] = lease
        self._by_worker.setdefault(lease.worker, {})[lease.id] = lease
        heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def get(self, lease_id: str, worker: str) -> Lease | None:
        """None where it is void, or another's."""
        lease = self._by_id.get(lease_id)
        return lease if lease is not None and lease.worker == worker else None

    def close(self, lease: Lease) -> None:
        del self._by_id[lease.id]
        del self._by_worker[lease.worker][lease.id]

    def of_worker(self, worker: str) -> list[Lease]:
        return list(self._by_worker.get(worker, {}).values())

    def overdue(self, now: float) -> list[Lease]:
        """Those past their limit, each said once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            lease = self._by_id.get(heapq.heappop(self._deadlines)[1])
            if lease is not None:
                found.append(lease)
        return found
