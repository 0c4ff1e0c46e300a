"""The rollout loop: what is generated next, and what a training step takes.

Prompts go out to workers as leases, as far ahead as staleness allows; finished groups come back and are let in,
dropped or generated again (`settling`); batch N is made of those that are ready when it is first asked for; a step
that is done may be followed by an evaluation. All without input and output: others bring the calls, and take away
`events`, `reports`, `scores` and `failure`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from areal_like.rollout.async_order import AsyncOrder
from areal_like.rollout.batches import Batches, RolloutBatch, with_spread
from areal_like.rollout.evaluation import Evaluation, Evaluations
from areal_like.rollout.gate import StalenessGate
from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.leases import Leases
from areal_like.rollout.outcomes import STEP_COUNTS, Outcomes
from areal_like.rollout.queue import GroupQueue
from areal_like.rollout.server_pool import ServerPool
from areal_like.rollout.settings import RolloutSettings, run_length
from areal_like.rollout.step_metrics import batch_metrics
from areal_like.rollout.sync_order import SyncOrder


class RolloutLoop:
    """`row_hashes` are those of the training rows; `start_step` steps are completed already."""

    def __init__(
        self,
        settings: RolloutSettings,
        server_pool: ServerPool,
        row_hashes: Sequence[str],
        valid_rows: int = 0,
        start_step: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.now, self._row_hashes = settings, now, row_hashes
        self.length = run_length(settings, len(row_hashes))
        self.queue = GroupQueue(settings, self.length)
        accepted = start_step * settings.batch_size
        self.gate = StalenessGate(settings.max_concurrent, settings.batch_size, settings.max_staleness, accepted)
        self.server_pool = server_pool
        self.leases = Leases()
        self.outcomes = Outcomes(self)
        self.ready: dict[int, Group] = {}
        """Finished groups that no batch has taken, by number."""
        self.batches = Batches(start_step)
        self.evaluations = Evaluations(settings, valid_rows, self.length, now)
        if start_step == 0:
            self.evaluations.request(0)
        self.order: SyncOrder | AsyncOrder = SyncOrder(self) if settings.synchronous else AsyncOrder(self)
        self.stopping = ""
        """Why no further batch will be formed."""
        self.failure = ""
        """Why the run cannot go on."""
        self.events: list[dict[str, Any]] = []
        self.reports: list[tuple[int, dict[str, float]]] = []
        """Metrics of steps, by how many are completed."""
        self.scores: list[tuple[int, dict[str, float]]] = []
        """Metrics of complete evaluations, by the oldest version that answered."""
        self.evaluated: list[Evaluation] = []
        """Those that are complete."""
        self._cancelled: dict[str, list[str]] = {}

    # To the workers, and back.

    def lease(self, worker: str, want: int) -> list[Lease]:
        """As many groups as the worker wants, as far as there are any to be generated now."""
        found: list[Lease] = []
        while len(found) < want and (following := self.order.next()) is not None:
            group, server, order = following
            found.append(self._lease(group, server, worker, order))
        return found

    def _lease(self, group: Group, server: str, worker: str, order: dict[str, Any] | None) -> Lease:
        group.tries += 1
        sampling = self.settings.sampling if group.evaluation is None else self.settings.evaluation_sampling
        lease = Lease(
            id=f"{group.name}.{group.tries}",
            group=group,
            worker=worker,
            server=server,
            address=self.server_pool.servers[server].address,
            tokens=group.n * sampling["max_new_tokens"],
            deadline=self.now() + self.settings.lease_limit_s,
            order=order,
        )
        self.leases.open(lease)
        self.server_pool.take(lease)
        return lease

    def capacity(self) -> int:
        """How many training groups may start now."""
        settings, gate = self.settings, self.gate
        lacking = max(0, settings.batch_size - len(self.ready))
        # In order all of a wave is waited for: more than is lacking helps only where some of it may be dropped.
        oversamples = not settings.synchronous or (settings.dynamic_sampling and settings.refill)
        surplus = int(lacking * (settings.oversampling_factor - 1)) if oversamples else 0
        to_the_end = self.length.total_steps * settings.batch_size + surplus - gate.accepted - gate.running
        waiting = settings.max_pending - len(self.ready) - gate.running
        return min(gate.capacity(self.server_pool.served_version, surplus), to_the_end, waiting)

    def next_group(self) -> Group:
        """The next training group, which counts as running from now on."""
        group = self.queue.take()
        self.gate.start()
        if not group.tries:
            epoch, row_hash = self.queue.order.epoch(group.number), self.row_hash(group.row)
            self.record_event("submitted", group=group.number, row=group.row, row_hash=row_hash, epoch=epoch)
        return group

    def finish(self, worker: str, results: Sequence[Result]) -> None:
        """What a worker brings back. A lease that is void, or another's, counts for nothing."""
        for result in results:
            lease = self.leases.get(result.lease, worker)
            if lease is None:
                self._cancelled.setdefault(worker, []).append(result.lease)
            else:
                self._close(lease)
                self.order.result(lease, result)

    def another_server(self, worker: str, lease_id: str, gone: str) -> str | None:
        """The address to go to instead of one that does not answer; "" where the lease is void, None where it has to
        wait for one."""
        lease = self.leases.get(lease_id, worker)
        if lease is None:
            return ""
        if self.settings.synchronous:
            self._close(lease)
            self.order.lost(lease, f"{lease.server} does not answer")
            return ""
        if lease.address != gone:
            return lease.address
        server = self.server_pool.choose(by_share=False, other_than=gone)
        if server is None:
            return None
        self.server_pool.give_back(lease)
        lease.server, lease.address = server.name, server.address
        self.server_pool.take(lease)
        return server.address

    def take_cancelled(self, worker: str) -> list[str]:
        """Leases that the worker need not go on with; each is said once."""
        return self._cancelled.pop(worker, [])

    # From the processes: who comes and goes.

    def worker_started(self, worker: str) -> None:
        """What it held in an earlier life goes to others."""
        self._cancelled.pop(worker, None)
        self.outcomes.worker_started(worker)
        for lease in self.leases.of_worker(worker):
            if self.leases.get(lease.id, worker) is not None:
                self._close(lease)
                self.order.lost(lease, f"{worker} was started again")

    def server_gone(self, name: str) -> None:
        self.server_pool.remove(name)
        self.order.server_gone(name)

    def check_time(self) -> None:
        """Leases that were held for too long have failed."""
        limit_s = self.settings.lease_limit_s
        for lease in self.leases.overdue(self.now()):
            if self.leases.get(lease.id, lease.worker) is not None:
                self.cancel(lease)
                error = f"{lease.worker} had no result after {limit_s:g} s (rollout.request_timeout, reward.timeout_s)"
                self.order.result(lease, Result(lease.id, "failed", error=error, error_kind="server"))

    def cancel(self, lease: Lease) -> None:
        """Whatever comes of it now will not be taken."""
        self._close(lease)
        self._cancelled.setdefault(lease.worker, []).append(lease.id)

    def _close(self, lease: Lease) -> None:
        self.leases.close(lease)
        self.server_pool.give_back(lease)

    # To the trainer.

    def batch(self, step: int, rank: int, world: int) -> RolloutBatch | str | None:
        """What a rank trains on in a step; why there is no such batch; or None while it is not there yet."""
        batch = self.batches.get(step, world)
        if batch is None and step >= self.length.total_steps:
            return f"the run is complete: {self.length.total_steps} steps"
        if self.stopping and (batch is None or not batch.fetched_by):
            return self.stopping
        if batch is None:
            if len(self.ready) < self.settings.batch_size:
                return None
            batch = self._form(world)
        batch.fetched_by.add(rank)
        return batch

    def _form(self, world: int) -> RolloutBatch:
        """Of those that are ready, in order of submission."""
        settings, outcomes = self.settings, self.outcomes
        groups = [self.ready.pop(number) for number in sorted(self.ready)[: settings.batch_size]]
        kept = with_spread(groups) if settings.dynamic_sampling and not settings.refill else groups
        taken = set(kept)
        for group in groups:
            if group not in taken:
                outcomes.leave_out_equal(group)
        batch = self.batches.form(kept, world)
        self.record_event("batched", step=batch.step, groups=[group.number for group in kept])
        outcomes.counts |= {"running": self.gate.running, "ready": len(self.ready)}
        outcomes.dropped_for_batch = 0
        outcomes.drop_stale_groups()
        return batch

    def done(self, step: int) -> None:
        """All ranks have trained on the batch."""
        batch = self.batches.done(step)
        if batch is None:
            return
        self.record_event("trained", step=step, groups=[group.number for group in batch.groups])
        counts = {f"rollout/{name}": float(self.outcomes.counts[name]) for name in STEP_COUNTS}
        self.reports.append((step + 1, {**batch_metrics(batch), **counts, **self.outcomes.take_timings()}))
        self.outcomes.counts.clear()
        self.evaluations.step_completed(step + 1, last=step + 1 == self.length.total_steps)

    # About itself.

    def row_hash(self, row: int) -> str:
        return self._row_hashes[row]

    def record_event(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, **facts})
