"""Order of generation in synchronous mode: the evaluation of a version, then the groups of its step, in batches.

A synchronous batch starts when all servers have the version of the step, and its groups are decided on when all of them
are finished. So neither timing nor the death of a process changes what is trained on.
"""

from typing import TYPE_CHECKING, Any

from areal_like.rollout.groups import Group, Lease, Result

if TYPE_CHECKING:
    from areal_like.rollout.loop import RolloutLoop

MAX_RESTARTS = 10


class SyncBatch:
    """Groups that are generated together, each on the server and in the slot that its number gives, so that the results
    do not depend on timing. If anything breaks, the whole batch is generated again under a new key."""

    def __init__(self, stem: str, groups: list[Group], num_servers: int) -> None:
        self.stem, self.groups, self.num_servers = stem, sorted(groups), num_servers
        self.tries = 0
        self.waiting: list[Group] = []
        self.results: dict[int, Result] = {}
        self._slots: dict[int, tuple[int, int]] = {}
        shares: dict[int, list[Group]] = {}
        for group in self.groups:
            shares.setdefault(self.server_of(group), []).append(group)
        for share in shares.values():
            self._slots |= {group.number: (place, len(share)) for place, group in enumerate(share)}
        self.start_again()

    def start_again(self) -> None:
        self.tries += 1
        self.waiting = self.groups[::-1]
        self.results.clear()

    def server_of(self, group: Group) -> int:
        """The index of its server."""
        return group.number % self.num_servers

    def slot_of(self, group: Group) -> dict[str, Any]:
        """The key that all groups of a server share, and the group's place among them."""
        place, of = self._slots[group.number]
        return {"key": f"{self.stem}.{self.tries}", "place": place, "of": of}

    @property
    def is_complete(self) -> bool:
        return len(self.results) == len(self.groups)


class SyncOrder:
    def __init__(self, loop: "RolloutLoop") -> None:
        self.loop = loop
        self.batch: SyncBatch | None = None
        self._abort_pending = self._aborting = False
        """Servers must stop what they generate for an older try before the next try starts."""
        self._step_starts: dict[int, tuple[int, list[Group]]] = {}
        """Step -> (next number, groups to be generated again) when its generation started."""
        self._phase, self._num_batches = "", 0

    def next(self) -> tuple[Group, str, dict[str, Any]] | None:
        """The next group, its server and its slot there."""
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
        """The batch of the step whose weights are served; None until the previous step is done."""
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
        """Whether the servers must abort all requests now; call `aborted` when they have."""
        if not self._abort_pending or self._aborting:
            return False
        self._abort_pending, self._aborting = False, True
        return True

    def aborted(self) -> None:
        self._aborting = False

    def step_start(self, step: int) -> tuple[int, list[Group]] | None:
        """None if its generation has not started."""
        return self._step_starts.get(step)

    def finished(self, lease: Lease, result: Result) -> None:
        group, batch, outcomes = lease.group, self.batch, self.loop.outcomes
        assert batch is not None, "an open lease belongs to the open batch"
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
        """Its worker died."""
        batch = self.batch
        if batch is None or lease.group not in batch.groups:
            return  # the batch was started again for another lease of the same worker
        if batch.tries > MAX_RESTARTS:
            self.loop.failure = (
                f"rollout: synchronous batch {batch.stem} was generated {batch.tries} times, and a process died each "
                f"time, last: {why}; see the logs of episodes and servers"
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
