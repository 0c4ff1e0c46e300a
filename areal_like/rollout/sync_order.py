"""Generation in synchronous mode: the evaluation of a version, then the groups of its step, wave after wave.

A wave begins when all servers have the version of the step, and nothing is decided about its groups before all of it
is there. So timing, and who died meanwhile, never changes what is trained on.
"""

from typing import TYPE_CHECKING, Any

from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.sync_batch import SyncBatch

if TYPE_CHECKING:
    from areal_like.rollout.loop import RolloutLoop

MAX_RESTARTS = 10


class SyncOrder:
    def __init__(self, loop: "RolloutLoop") -> None:
        self.loop = loop
        self.batch: SyncBatch | None = None
        self._abort_pending = self._aborting = False
        """What servers still generate of an older try has to be stopped before the next one begins."""
        self._step_starts: dict[int, tuple[int, list[Group]]] = {}
        """By step whose generation has begun: the next number and the groups to be generated again, as they were."""
        self._phase, self._num_batches = "", 0

    def next(self) -> tuple[Group, str, dict[str, Any]] | None:
        """The next group, the server that it goes to, and its place there."""
        if self._abort_pending or self._aborting or self.loop.stopping:
            return None
        if self.batch is None:
            self.batch = self._open_batch()
        if self.batch is None or not self.batch.waiting or not self._all_servers_have(self.loop.batches.done_steps):
            return None
        group = self.batch.waiting.pop()
        server = self.loop.server_pool.ready[self.batch.server_of(group)]
        return group, server.name, self.batch.slot_of(group)

    def _all_servers_have(self, version: int) -> bool:
        ready = self.loop.server_pool.ready
        return len(ready) == self.loop.settings.num_servers and all(server.version == version for server in ready)

    def _open_batch(self) -> SyncBatch | None:
        """Of the step whose weights are served, but not before the step before it is done."""
        loop, step = self.loop, self.loop.batches.done_steps
        if not self._all_servers_have(step):
            return None
        evaluation = loop.evaluations.begin(step)
        if evaluation is not None:
            return self._make_batch(f"eval-{step}", evaluation.take(loop.settings.evaluation_concurrent))
        if loop.batches.next_step != step or step >= loop.length.total_steps:
            return None
        if step not in self._step_starts:
            self._step_starts = {step: (loop.queue.next_number, list(loop.queue.again()))}
        count = loop.capacity()
        return self._make_batch(str(step), [loop.next_group() for _ in range(count)]) if count > 0 else None

    def _make_batch(self, phase: str, groups: list[Group]) -> SyncBatch:
        self._num_batches = self._num_batches + 1 if phase == self._phase else 1
        self._phase = phase
        stem = phase if self._num_batches == 1 else f"{phase}w{self._num_batches}"
        return SyncBatch(stem, groups, self.loop.settings.num_servers)

    def begin_abort(self) -> bool:
        """Whether the servers have to be told to stop what they do; `aborted` is to be called once they were."""
        if not self._abort_pending or self._aborting:
            return False
        self._abort_pending, self._aborting = False, True
        return True

    def aborted(self) -> None:
        self._aborting = False

    def step_start(self, step: int) -> tuple[int, list[Group]] | None:
        """None where its generation has not begun."""
        return self._step_starts.get(step)

    def result(self, lease: Lease, result: Result) -> None:
        group, batch, outcomes = lease.group, self.batch, self.loop.outcomes
        assert batch is not None, "a lease that is not void belongs to the wave under way"
        if result.status == "failed" and result.error_kind == "server" and outcomes.may_retry(group):
            outcomes.count_failure(group, result)
            self._generate_again(f"{group.name}: {result.error}")
            return
        batch.results[group.number] = result
        if batch.is_complete:
            self.batch = None
            for each in batch.groups:
                outcomes.handle(each, batch.results[each.number])

    def lost(self, lease: Lease, why: str) -> None:
        """Whoever had it died."""
        batch = self.batch
        if batch is None or lease.group not in batch.groups:
            return  # the wave was begun again for another lease of the same owner
        if batch.tries > MAX_RESTARTS:
            self.loop.failure = (
                f"rollout: wave {batch.stem} was generated {batch.tries} times, and each time somebody died over it, "
                f"last: {why}; the logs of episodes and servers say why"
            )
        self._generate_again(why)

    def server_gone(self, name: str) -> None:
        if self.batch is not None:
            self._generate_again(f"{name} is gone")

    def _generate_again(self, why: str) -> None:
        batch = self.batch
        assert batch is not None
        for lease in self.loop.leases:
            self.loop.cancel(lease)
        batch.start_again()
        self._abort_pending = True
        self.loop.outcomes.requeued(batch.groups, why)
