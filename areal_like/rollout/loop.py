"""The rollout loop: which groups are generated next, and which a training step gets.

Workers lease groups as far ahead as staleness allows; finished groups are accepted, dropped or generated again
(`outcomes`); batch N is formed from the ready groups when it is first requested; an evaluation may follow a step. No
input or output: the controller calls the methods and collects `events`, `reports`, `scores`, `warnings` and
`failure`.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from areal_like.rollout.async_order import AsyncOrder
from areal_like.rollout.batches import Batches, RolloutBatch, with_spread
from areal_like.rollout.evaluation import Evaluation, Evaluations
from areal_like.rollout.gate import StalenessGate
from areal_like.rollout.groups import Group, Lease, Leases, Result
from areal_like.rollout.outcomes import STEP_COUNTS, Outcomes
from areal_like.rollout.queue import GroupQueue
from areal_like.rollout.server_pool import ServerPool
from areal_like.rollout.settings import RolloutSettings, run_length
from areal_like.rollout.step_metrics import agent_metrics, batch_metrics
from areal_like.rollout.sync_order import SyncOrder


class RolloutLoop:
    """`row_hashes` are of the training rows; `start_step` steps are already completed."""

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
        """Finished groups that are in no batch yet, by number."""
        self.batches = Batches(start_step)
        self.evaluations = Evaluations(settings, valid_rows, self.length, now)
        if start_step == 0:
            self.evaluations.request(0)
        self.order: SyncOrder | AsyncOrder = SyncOrder(self) if settings.synchronous else AsyncOrder(self)
        self.stopping = ""
        """The reason why no further batch is formed."""
        self.failure = ""
        """The reason why the run cannot continue."""
        self.events: list[dict[str, Any]] = []
        self.reports: list[tuple[int, dict[str, float]]] = []
        """(completed steps, metrics)."""
        self.scores: list[tuple[int, dict[str, float]]] = []
        """(oldest version that generated, metrics) of completed evaluations."""
        self.evaluated: list[Evaluation] = []
        """Completed evaluations."""
        self.warnings: list[str] = []
        """Messages for the log."""
        self._missing_agent_stats: set[str] = set()
        self._cancelled: dict[str, list[str]] = {}

    # Workers.

    def lease(self, worker: str, want: int) -> list[Lease]:
        """At most `want` groups, as far as groups may start now."""
        leases: list[Lease] = []
        while len(leases) < want and (start := self.order.next()) is not None:
            group, server, slot = start
            leases.append(self._lease(group, server, worker, slot))
        return leases

    def _lease(self, group: Group, server: str, worker: str, slot: dict[str, Any] | None) -> Lease:
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
            slot=slot,
        )
        self.leases.open(lease)
        self.server_pool.reserve(lease)
        return lease

    def capacity(self) -> int:
        """How many training groups may start now."""
        settings, gate = self.settings, self.gate
        missing = max(0, settings.batch_size - len(self.ready))
        # A synchronous batch waits for all its groups: a surplus helps only if some of them may be dropped.
        oversamples = not settings.synchronous or (settings.dynamic_sampling and settings.refill)
        # Rounded first: 10 * 1.1 is a little more than 11.
        started = math.ceil(round(missing * settings.oversampling_factor, 6)) if oversamples else missing
        surplus = started - missing
        until_end = self.length.total_steps * settings.batch_size + surplus - gate.accepted - gate.running
        pending = settings.max_pending - len(self.ready) - gate.running
        return min(gate.capacity(self.server_pool.served_version, surplus), until_end, pending)

    def next_group(self) -> Group:
        """Takes the next training group; it counts as running from now on."""
        group = self.queue.take()
        self.gate.start()
        if not group.tries:
            epoch, row_hash = self.queue.row_order.epoch(group.number), self.row_hash(group.row)
            self.record_event("submitted", group=group.number, row=group.row, row_hash=row_hash, epoch=epoch)
        return group

    def finish(self, worker: str, results: Sequence[Result]) -> None:
        """Takes a worker's results. Those of cancelled leases and of other workers' leases are ignored."""
        for result in results:
            lease = self.leases.get(result.lease, worker)
            if lease is None:
                self._cancelled.setdefault(worker, []).append(result.lease)
            else:
                self._close(lease)
                self.order.finished(lease, result)

    def another_server(self, worker: str, lease_id: str, failed_address: str) -> str | None:
        """Replaces the server at `failed_address`, which does not answer: the new address, "" if the lease is
        cancelled, None if no server is free yet."""
        lease = self.leases.get(lease_id, worker)
        if lease is None:
            return ""
        if self.settings.synchronous:
            self._close(lease)
            self.order.lost(lease, f"{lease.server} does not answer")
            return ""
        if lease.address != failed_address:
            return lease.address
        server = self.server_pool.choose(by_share=False, other_than=failed_address)
        if server is None:
            return None
        self.server_pool.release(lease)
        lease.server, lease.address = server.name, server.address
        self.server_pool.reserve(lease)
        return server.address

    def take_cancelled(self, worker: str) -> list[str]:
        """Cancelled leases of the worker, each returned once."""
        return self._cancelled.pop(worker, [])

    # Processes.

    def worker_started(self, worker: str) -> None:
        """Leases of its previous incarnation are lost."""
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
        """Fails the leases that are past their deadline."""
        limit_s = self.settings.lease_limit_s
        for lease in self.leases.overdue(self.now()):
            if self.leases.get(lease.id, lease.worker) is not None:
                self.cancel(lease)
                error = f"{lease.worker} had no result after {limit_s:g} s (rollout.request_timeout, reward.timeout_s)"
                self.order.finished(lease, Result(lease.id, "failed", error=error, error_kind="server"))

    def cancel(self, lease: Lease) -> None:
        """A result of it will be ignored."""
        self._close(lease)
        self._cancelled.setdefault(lease.worker, []).append(lease.id)

    def _close(self, lease: Lease) -> None:
        self.leases.close(lease)
        self.server_pool.release(lease)

    # Trainer.

    def batch(self, step: int, rank: int, world: int) -> RolloutBatch | str | None:
        """The batch of a step; a text that says why there is none; None while it cannot be formed yet."""
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
        """Takes the ready groups in the order of submission."""
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
        """All ranks have trained on the batch of this step."""
        batch = self.batches.done(step)
        if batch is None:
            return
        self.record_event("trained", step=step, groups=[group.number for group in batch.groups])
        counts = {f"rollout/{name}": float(self.outcomes.counts[name]) for name in STEP_COUNTS}
        statistics = {**batch_metrics(batch), **self._agent_metrics(batch)}
        self.reports.append((step + 1, {**statistics, **counts, **self.outcomes.take_timings()}))
        self.outcomes.counts.clear()
        self.evaluations.step_completed(step + 1, last=step + 1 == self.length.total_steps)

    def _agent_metrics(self, batch: RolloutBatch) -> dict[str, float]:
        """Warns once of each name that no trajectory has."""
        metrics = agent_metrics(batch, self.settings.agent_stats)
        for name in self.settings.agent_stats:
            if f"rollout/agent/{name}/mean" not in metrics and name not in self._missing_agent_stats:
                self._missing_agent_stats.add(name)
                self.warnings.append(
                    f"actor.log_agent_stats_keys: no trajectory of batch {batch.step} has {name!r} in its metrics; it "
                    "is logged only for batches that have it"
                )
        return metrics

    def row_hash(self, row: int) -> str:
        return self._row_hashes[row]

    def record_event(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, **facts})
