"""Order of generation in asynchronous mode: training groups as far as the gate allows, evaluations in between."""

from typing import TYPE_CHECKING

from areal_like.rollout.groups import Group, Lease, Result

if TYPE_CHECKING:
    from areal_like.rollout.loop import RolloutLoop

MAX_LOSSES = 5


class AsyncOrder:
    def __init__(self, loop: "RolloutLoop") -> None:
        self.loop = loop
        self._evaluate_next = True

    def next(self) -> tuple[Group, str, None] | None:
        """The next group and its server, in no fixed slot. Training and evaluation alternate where both have groups."""
        if self.loop.stopping:
            return None
        self._evaluate_next = not self._evaluate_next
        start = self._evaluate() or self._train() if self._evaluate_next else self._train() or self._evaluate()
        return None if start is None else (*start, None)

    def _train(self) -> tuple[Group, str] | None:
        loop = self.loop
        if loop.capacity() <= 0:
            return None
        server = loop.server_pool.choose()
        return None if server is None else (loop.next_group(), server.name)

    def _evaluate(self) -> tuple[Group, str] | None:
        loop = self.loop
        evaluation = loop.evaluations.begin(loop.server_pool.served_version)
        if evaluation is None or evaluation.num_running >= loop.settings.evaluation_concurrent:
            return None
        server = loop.server_pool.choose(by_share=False, version=loop.evaluations.held_version)
        groups = evaluation.take(1) if server is not None else []
        return (groups[0], server.name) if server is not None and groups else None

    def finished(self, lease: Lease, result: Result) -> None:
        self.loop.outcomes.handle(lease.group, result)

    def lost(self, lease: Lease, why: str) -> None:
        """Its worker died. A group that was lost too often fails for good: it may be what kills its workers."""
        lease.group.losses += 1
        if lease.group.losses > MAX_LOSSES:
            error = f"its worker died {lease.group.losses} times, last: {why}"
            result = Result(lease.id, "failed", error=error, error_kind="server")
            self.loop.outcomes.handle(lease.group, result, final=True)
        else:
            self.loop.outcomes.put_back(lease.group, why)

    def begin_abort(self) -> bool:
        """Cancelled leases may run on: nothing depends on them."""
        return False

    def aborted(self) -> None:
        pass

    def step_start(self, step: int) -> None:
        """Groups of several steps run at the same time: no step has a start."""

    def server_gone(self, name: str) -> None:
        """Its groups stay with their workers, which request another server."""
