"""The rollout loop: which groups are generated next, and which a training step gets.

Workers lease groups in the order of `async_order` or `sync_order`; `outcomes` decides which finished groups are
accepted, dropped or generated again; a batch is formed from the ready groups when it is first requested. These only
decide: all changes of the state are made here.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from areal_like.data.row_table import RowTable, hash_text
from areal_like.rollout.async_order import AsyncOrder
from areal_like.rollout.batches import Batches, RolloutBatch, is_equal, without_equal
from areal_like.rollout.curriculum.curriculum import Curriculum, curriculum_of
from areal_like.rollout.decisions import Accept, Decision, Drop, Fail, Finished, Open, Requeue, Restart, Start
from areal_like.rollout.evaluation.evaluation import Evaluation
from areal_like.rollout.evaluation.schedule import EvaluationSchedule
from areal_like.rollout.gate import StalenessGate, free_places
from areal_like.rollout.groups import Group, Lease, Leases, Result
from areal_like.rollout.order import Order
from areal_like.rollout.outcomes import Streaks, decide, is_stale
from areal_like.rollout.queue import GroupQueue
from areal_like.rollout.replaced_groups import ReplacedGroups
from areal_like.rollout.row_inspection import InspectedRows, RowInspection
from areal_like.rollout.server_pool import ServerPool
from areal_like.rollout.settings import RolloutSettings, run_length
from areal_like.rollout.step_counts import StepCounts
from areal_like.rollout.step_metrics import AgentMetrics, batch_metrics, judge_groups
from areal_like.rollout.sync_order import SyncOrder


class RolloutLoop:
    """`rows` are for training, `evaluation_rows` are evaluated, by split; `start_step` steps are already completed."""

    def __init__(
        self,
        settings: RolloutSettings,
        server_pool: ServerPool,
        rows: RowTable,
        evaluation_rows: Mapping[str, RowTable],
        start_step: int = 0,
        now: Callable[[], float] = time.monotonic,
        curriculum: Curriculum | None = None,
    ) -> None:
        self.settings, self.now = settings, now
        self.length = run_length(settings, len(rows))
        self.queue = GroupQueue(settings, rows, curriculum or curriculum_of(settings.curriculum, len(rows)))
        accepted = start_step * settings.batch_size
        self.gate = StalenessGate(settings.max_concurrent, settings.batch_size, settings.max_staleness, accepted)
        self.server_pool = server_pool
        self.leases = Leases()
        self.ready: dict[int, Group] = {}
        """Finished groups that are in no batch yet, by number."""
        self.replaced = ReplacedGroups(settings.vote_rule, is_judged=start_step == 0)
        self.counts = StepCounts()
        self.batches = Batches(start_step)
        self.evaluations = EvaluationSchedule(settings, evaluation_rows, self.length, now)
        self.inspection = RowInspection({"train": self.queue.dataset, **self.evaluations.datasets}, now)
        if start_step == 0 and settings.evaluates_base_model:
            self.evaluations.request(0)
        self.order: Order = SyncOrder() if settings.synchronous else AsyncOrder()
        self.stopping = self.failure = ""
        """The reasons why no further batch is formed, and why the run cannot continue."""
        self.events: list[dict[str, Any]] = []
        self.reports: list[tuple[int, dict[str, float], str]] = []
        """(completed steps, metrics, most frequent error of groups that failed)."""
        self.scores: list[tuple[int, dict[str, float]]] = []
        """(oldest version that generated, metrics) of completed evaluations."""
        self.evaluated: list[Evaluation] = []
        self.warnings: list[str] = []
        self._streaks = Streaks(settings, self.length)
        self._agent_metrics = AgentMetrics(settings.agent_stats)

    # Workers.

    def lease(self, worker: str, want: int) -> list[Lease]:
        """At most `want` groups, as far as groups may start now."""
        leases: list[Lease] = []
        while len(leases) < want and (start := self._next_start()) is not None:
            leases.append(self._lease(start, worker))
        return leases

    def _next_start(self) -> Start | None:
        decision = None if self.stopping else self.order.next(self)
        while isinstance(decision, Open):
            self._open(decision)
            decision = self.order.next(self)
        return decision

    def _open(self, batch: Open) -> None:
        """Takes the groups of a synchronous batch."""
        if batch.take == "evaluation":
            groups = self.evaluations.take(batch.num_groups)
        else:
            self.queue.mark_step(self.batches.done_steps)
            groups = [self._next_group() for _ in range(batch.num_groups)]
        self.order.opened(groups, self)

    def _lease(self, start: Start, worker: str) -> Lease:
        if isinstance(start.take, Group):
            group = start.take
        else:
            group = self._next_group() if start.take == "training" else self.evaluations.take(1)[0]
        group.tries += 1
        lease = start.lease(group, worker, self.queue.priority(group), self.settings, self.now())
        self.leases.open(lease)
        self.server_pool.reserve(lease)
        self.evaluations.leased(lease)
        return lease

    def capacity(self) -> int:
        """How many training groups may start now. A synchronous batch starts as a whole."""
        pool = self.server_pool
        if self.evaluations.due is not None and pool.awaits_evaluators:
            return 0  # new weights would take the place of those that are to be evaluated first
        count = free_places(self.settings, self.gate, len(self.ready), pool.served_version, self.length.total_steps)
        return count if self.queue.has(count if self.settings.synchronous else min(count, 1)) else 0

    def _next_group(self) -> Group:
        """Takes the next training group; it counts as running from now on."""
        group = self.queue.take()
        self.gate.start()
        self.correct_length()
        if not group.tries:
            epoch, row_hash = self.queue.row_order.epoch(group.number), hash_text(group.row_hash)
            self.record_event("submitted", group=group.number, row=group.row, row_hash=row_hash, epoch=epoch)
        return group

    def correct_length(self) -> None:
        """Once the number of rows that are not too long is known: before the last batch of an epoch starts."""
        rows = self.queue.row_order.num_kept
        if rows is not None and rows != self.length.rows:
            self.length = run_length(self.settings, rows)
            self.evaluations.set_length(self.length)
            self._streaks.length = self.length
            self.record_event("corrected", rows=rows, steps=self.length.total_steps)

    def inspected(self, rows: InspectedRows) -> None:
        self.failure = self.inspection.add(rows, self.counts) or self.failure

    def held(self, worker: str, call: int, held: Collection[str]) -> bool:
        """What a worker holds as it makes this call. Other leases that were given to it are queued again."""
        lost, why = self.leases.not_held(worker, call, held), f"{worker} did not receive it"
        for lease in lost:
            self._close(lease)
            self._settle(self.order.not_received(lease, why))
        self._record_requeued([lease.group for lease in lost if lease.slot is not None], why)
        if lost:
            self.warnings.append(f"{worker} did not receive {len(lost)} leases that were sent; they are queued again")
        return bool(lost)

    def finish(self, worker: str, results: Sequence[Result]) -> None:
        """Takes a worker's results. Those of cancelled leases and of other workers' leases are ignored."""
        for result in results:
            lease = self.leases.get(result.lease, worker)
            if lease is None:
                self.leases.add_cancelled(worker, result.lease)
            else:
                self._close(lease)
                self._settle(self.order.finished(lease, result, self))

    def another_server(self, worker: str, lease_id: str, failed_address: str) -> str | None:
        """In place of one that does not answer: its address, "" if the lease is cancelled, None if none is free yet."""
        lease = self.leases.get(lease_id, worker)
        if lease is None:
            return ""
        if lease.slot is not None:
            hangs = self.server_pool.hangs(lease, self.settings.silence)
            self._lose(lease, f"{lease.server} does not answer", counts=not hangs)
            return ""
        return lease.address if lease.address != failed_address else self.server_pool.replace(lease, failed_address)

    # Processes.

    def worker_started(self, worker: str) -> None:
        """Leases of its previous incarnation are lost."""
        self.leases.worker_started(worker)
        self.counts.worker_started(worker)
        self.inspection.worker_started(worker)
        for lease in self.leases.of_worker(worker):
            if self.leases.get(lease.id, worker) is not None:  # a restart cancels leases
                self._lose(lease, f"{worker} was started again")

    def _lose(self, lease: Lease, why: str, counts: bool = True) -> None:
        self._close(lease)
        lease.group.losses += counts
        self._settle(self.order.lost(lease, why, counts))

    def server_gone(self, name: str) -> None:
        self._settle(self.order.server_gone(name) if self.server_pool.remove(name) is self.server_pool else ())

    def check_time(self) -> None:
        """Fails the leases that are past their deadline."""
        for lease in self.leases.overdue(self.now()):
            if self.leases.get(lease.id, lease.worker) is not None:
                self.cancel(lease)
                self._settle(self.order.finished(lease, lease.no_result(self.settings.lease_limit_s), self))

    def cancel(self, lease: Lease) -> None:
        """A result of it will be ignored."""
        self._close(lease)
        self.leases.add_cancelled(lease.worker, lease.id)

    def _close(self, lease: Lease) -> None:
        self.leases.close(lease)
        self.server_pool.release(lease)

    # Outcomes.

    def _settle(self, outcomes: Iterable[Finished | Decision]) -> None:
        """One by one: a decision depends on those before it."""
        for outcome in outcomes:
            decision = decide(*outcome, self) if isinstance(outcome, Finished) else outcome
            if isinstance(decision, Restart):
                self._restart(decision)
            elif decision.group.evaluation is None:
                self._apply(decision)
            elif (evaluation := self.evaluations.of(decision.group)) is not None:
                self._apply_to_evaluation(decision, evaluation)

    def _apply(self, decision: Accept | Drop | Requeue | Fail) -> None:
        group = decision.group
        match decision:
            case Accept(_, result):
                self._done(group, result)
                self.gate.accept()
                self.ready[group.number] = group
            case Drop(_, result, reason):
                if result.status == "done":
                    self._done(group, result)
                self.gate.release()
                self._drop(group, reason)
                self.replaced.add(result.facts, reason)
                if reason == "rejected":
                    self.failure = self._streaks.rejected() or self.failure
            case Requeue(_, why, failure):
                group.count_failure(failure)
                self.gate.release()
                self.queue.put_back(group)
                self._record_requeued([group], why)
            case Fail(_, result):
                group.count_failure(result)
                self.gate.release()
                self.counts.add_failed(group.error)
                kind = result.error_kind
                self.record_event("failed", group=group.number, row=group.row, kind=kind, error=group.error)
                self.failure = self._streaks.failed(group, kind) or self.failure

    def _done(self, group: Group, result: Result) -> None:
        self._streaks.done()
        group.done(result, self.settings.refill or self.queue.curriculum.admits(group, result.facts))
        self.queue.curriculum.observe(group)
        self.counts.add_timings(result.timings)
        self.record_event("finished", **group.record())

    def _drop(self, group: Group, reason: str) -> None:
        """Other groups take the place of groups that are dropped; a row of a stale group is generated again."""
        self.counts.add_left_out(group, reason)
        self.queue.curriculum.left_out(group, reason)
        group.forget_results()
        self.counts.add("rejected" if reason == "rejected" else f"dropped_{reason}")
        self.record_event("dropped", group=group.number, row=group.row, reason=reason)
        if reason == "stale":
            self.queue.put_back(group)
            self._record_requeued([group], reason)

    def drop_stale_groups(self) -> None:
        """Drops the ready groups that are too old for all batches to come."""
        for group in [group for group in self.ready.values() if is_stale(group.oldest_version, self)]:
            del self.ready[group.number]
            self.gate.drop()
            self._drop(group, "stale")

    def _record_requeued(self, groups: Sequence[Group], why: str) -> None:
        if numbers := [group.number for group in groups if group.evaluation is None]:
            self.counts.add("requeued", len(numbers))
            self.record_event("requeued", groups=numbers, why=why)

    def _restart(self, restart: Restart) -> None:
        """All leases with a slot are of the synchronous batch that begins again."""
        if restart.failure is not None:
            restart.failure.group.count_failure(restart.failure.result)
        for lease in [each for each in self.leases if each.slot is not None]:
            self.cancel(lease)
        self._record_requeued(restart.groups, restart.why)
        self.failure = restart.ends_run or self.failure

    def _apply_to_evaluation(self, decision: Accept | Drop | Requeue | Fail, evaluation: Evaluation) -> None:
        evaluation.apply(decision)
        if isinstance(decision, Fail):
            self.record_event("evaluation_failed", **evaluation.identity, **decision.group.failure)
        self.answers_added(evaluation)

    def answers_added(self, evaluation: Evaluation) -> None:
        self.events += self.evaluations.progress.events(evaluation)
        if evaluation.open == 0:
            self.evaluations.close()
            self.scores.append((evaluation.versions[0], evaluation.metrics(self.settings.evaluation_max_failed_share)))
            self.evaluated.append(evaluation)
            self.record_event("evaluated", **evaluation.record())
            self.failure = evaluation.failure or self.failure

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
        groups = [self.ready.pop(number) for number in sorted(self.ready)[: self.settings.batch_size]]
        if self.batches.next_step == 0:
            self.record_event("judged", **judge_groups(groups, self.settings.vote_rule, self.replaced.answers))
        kept = without_equal(groups, self.settings)
        for group in sorted(set(groups).difference(kept)):  # its place stays empty: the gate counts it as accepted
            self._drop(group, "equal" if is_equal(group, self.settings) else "difficulty")
        batch = self.batches.form(kept, world, self.length)
        self.record_event("batched", step=batch.step, groups=[group.number for group in kept])
        self.counts.add_levels(running=self.gate.running, ready=len(self.ready))
        self.replaced.begin_batch()
        self.drop_stale_groups()
        return batch

    def done(self, step: int) -> RolloutBatch | None:
        """All ranks have trained on the batch of this step, which is returned; None if that was known."""
        if (batch := self.batches.done(step)) is None:
            return None
        groups, pending = ([each.number for each in some] for some in (batch.groups, self.queue.pending(self.leases)))
        self.record_event("trained", step=step, groups=groups, pending=pending)
        agents, warnings = self._agent_metrics.of(batch)
        self.warnings += warnings
        metrics = {**batch_metrics(batch, self.settings.vote_rule), **agents, **self.queue.curriculum.metrics()}
        self.reports.append(self.counts.report(step + 1, metrics))
        self.evaluations.step_completed(step + 1, last=step + 1 == self.length.total_steps)
        return batch

    def record_event(self, event: str, **facts: Any) -> None:
        self.events.append({"event": event, **facts})
