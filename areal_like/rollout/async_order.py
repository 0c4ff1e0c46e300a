"""Generation in asynchronous mode: training groups as far as the gate lets them, evaluations in between."""

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
        """The next group and the server that it goes to: training and evaluation by turns, where both have some. There
        is no order to be kept."""
        if self.loop.stopping:
            return None
        self._evaluate_next = not self._evaluate_next
        found = self._evaluate() or self._train() if self._evaluate_next else self._train() or self._evaluate()
        return None if found is None else (*found, None)

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

    def result(self, lease: Lease, result: Result) -> None:
        self.loop.outcomes.handle(lease.group, result)

    def lost(self, lease: Lease, why: str) -> None:
        """Whoever had it died. What keeps killing whoever has it is a failure, and no bad luck."""
        lease.group.losses += 1
        if lease.group.losses > MAX_LOSSES:
            lost = f"whoever had it died {lease.group.losses} times, last: {why}"
            result = Result(lease.id, "failed", error=lost, error_kind="server")
            self.loop.outcomes.handle(lease.group, result, final=True)
        else:
            self.loop.outcomes.put_back(lease.group, why)

    def begin_abort(self) -> bool:
        """What is void may end where it is: nothing else depends on it."""
        return False

    def aborted(self) -> None:
        pass

    def step_start(self, step: int) -> None:
        """Groups of several steps are under way at once: none of them has a beginning."""

    def server_gone(self, name: str) -> None:
        """Its groups stay with their workers, who ask for another server."""
