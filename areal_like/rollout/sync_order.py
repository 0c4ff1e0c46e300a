"""Order of generation in synchronous mode: the evaluation of a version, then the groups of its step, in batches.

Servers for evaluations alone generate beside that, group by group.

A synchronous batch starts when all servers have the version of the step, and its groups are decided on when all of them
are finished. So neither timing nor the death of a process changes what is trained on.
"""

from collections.abc import Iterator
from typing import Any

from areal_like.rollout.async_order import again_or_failed, again_or_finished, evaluate, server_hangs
from areal_like.rollout.decisions import Decision, Finished, Open, Requeue, Restart, Start
from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.order import View
from areal_like.rollout.outcomes import may_retry

MAX_LOSSES = 10


class SyncBatch:
    """Groups that are generated together, each on the server and in the slot that its number gives, so that the results
    do not depend on timing. If anything breaks, the whole batch is generated again under a new key."""

    def __init__(self, stem: str, groups: list[Group], num_servers: int) -> None:
        self.stem, self.groups, self.num_servers = stem, sorted(groups), num_servers
        self.tries = self.losses = 0
        """How often it was generated, and how often because a process had died."""
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
    def __init__(self) -> None:
        self.batch: SyncBatch | None = None
        self._abort_pending = self._aborting = False
        """Servers must stop what they generate for an older try before the next try starts."""
        self._phase, self._num_batches = "", 0

    def next(self, view: View) -> Start | Open | None:
        decision = self._next_of_step(view)
        return evaluate(view) if decision is None and view.server_pool.has_evaluators else decision

    def _next_of_step(self, view: View) -> Start | Open | None:
        """The next group of the open batch, on its server and in its slot there."""
        step = view.batches.done_steps
        if self._abort_pending or self._aborting or not _all_servers_have(step, view):
            return None
        if self.batch is None:
            return _next_batch(step, view)
        if not self.batch.waiting:
            return None
        group = self.batch.waiting.pop()
        return Start(group, view.server_pool.ready[self.batch.server_of(group)], self.batch.slot_of(group))

    def opened(self, groups: list[Group], view: View) -> None:
        step = str(view.batches.done_steps)
        phase = step if groups[0].evaluation is None else f"eval-{step}"
        self._num_batches = self._num_batches + 1 if phase == self._phase else 1
        self._phase = phase
        stem = phase if self._num_batches == 1 else f"{phase}w{self._num_batches}"
        self.batch = SyncBatch(stem, groups, view.settings.num_servers)

    def finished(self, lease: Lease, result: Result, view: View) -> Iterator[Finished | Decision]:
        """The groups of a batch are decided on when all of them are finished."""
        group, batch = lease.group, self.batch
        if lease.slot is None:  # it is evaluated outside of the batches
            yield again_or_finished(lease, result, view)
            return
        assert batch is not None, "an open lease belongs to the open batch"
        if why := server_hangs(lease, result, view):
            yield self._restart(batch, f"{group.name}: {why}")
            return
        if result.status == "failed" and result.error_kind == "server" and may_retry(group, view.settings):
            yield self._restart(batch, f"{group.name}: {result.error}", failure=Finished(group, result))
            return
        batch.results[group.number] = result
        if batch.is_complete:
            self.batch = None
            for each in batch.groups:
                yield Finished(each, batch.results[each.number])

    def lost(self, lease: Lease, why: str, counts: bool = True) -> Iterator[Decision]:
        batch = self.batch
        if lease.slot is None:
            yield again_or_failed(lease, why)
            return
        if batch is None or lease.group not in batch.groups:
            return  # the batch was started again for another lease of the same worker
        ends_run = ""
        batch.losses += counts
        if batch.losses > MAX_LOSSES:
            ends_run = (
                f"rollout: synchronous batch {batch.stem} was generated {batch.losses} times, and a process died each "
                f"time, last: {why}; see the logs of episodes and servers"
            )
        yield self._restart(batch, why, ends_run=ends_run)

    def not_received(self, lease: Lease, why: str) -> Iterator[Decision]:
        """Nothing has been generated in its slot: it is given again."""
        if lease.slot is None:
            yield Requeue(lease.group, why)
            return
        assert self.batch is not None, "an open lease belongs to the open batch"
        self.batch.waiting.append(lease.group)

    def server_gone(self, name: str) -> Iterator[Decision]:
        if self.batch is not None:
            yield self._restart(self.batch, f"{name} is gone")

    def _restart(self, batch: SyncBatch, why: str, failure: Finished | None = None, ends_run: str = "") -> Restart:
        batch.start_again()
        self._abort_pending = True
        return Restart(batch.groups, why, failure, ends_run)

    def begin_abort(self) -> bool:
        if not self._abort_pending or self._aborting:
            return False
        self._abort_pending, self._aborting = False, True
        return True

    def aborted(self) -> None:
        self._aborting = False


def _all_servers_have(version: int, view: View) -> bool:
    ready = view.server_pool.ready
    return len(ready) == view.settings.num_servers and all(server.version == version for server in ready)


def _next_batch(step: int, view: View) -> Open | None:
    """The evaluation of the weights that are served, then the groups of their step; None until the previous step is
    done."""
    if not view.server_pool.has_evaluators:
        if view.evaluations.waits_for_rows:
            return None
        if (count := view.evaluations.startable(step)) > 0:
            return Open("evaluation", count)
    if view.batches.next_step != step or step >= view.length.total_steps or (count := view.capacity()) <= 0:
        return None
    return Open("training", count)
