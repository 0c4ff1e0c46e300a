"""What happens to a finished group: ready for a batch, dropped, generated again or failed."""

from collections import Counter
from typing import TYPE_CHECKING

from areal_like.rollout.groups import Group, Result

if TYPE_CHECKING:
    from areal_like.rollout.loop import RolloutLoop

FAULT_KEYS = {
    "reward": "reward.name",
    "workflow": "workflow.name",
    "row": "train_dataset.path",
    "server": "rollout.backend",
}
"""The configuration key to blame, by kind of failure."""
REWARD_COUNT_METRICS = {
    "errors": "reward_errors",
    "timeouts": "reward_timeouts",
    "children_lost": "reward_processes_lost",
}
"""Counter of a worker -> metric."""
STEP_COUNTS = (
    *("dropped_stale", "dropped_equal", "rejected", "failed", "requeued", "running", "ready"),
    *REWARD_COUNT_METRICS.values(),
)
TIMING_METRICS = {
    "total_s": "perf/episode_s",
    "generate_s": "perf/episode_generate_s",
    "reward_s": "perf/episode_reward_s",
}
"""Timing of a worker -> metric."""


class Outcomes:
    def __init__(self, loop: "RolloutLoop") -> None:
        self.loop = loop
        self.counts: Counter[str] = Counter()
        """Since the last step, by metric."""
        self.dropped_for_batch = 0
        self._failed_in_a_row = self._rejected_in_a_row = 0
        self._first_error = ""
        self._reward_counts: dict[str, dict[str, int]] = {}
        """Latest counters of each worker; a worker counts from its start."""
        self._timings: list[dict[str, float]] = []

    def count_rewards(self, worker: str, counts: dict[str, int]) -> None:
        before = self._reward_counts.setdefault(worker, {})
        for name, count in counts.items():
            self.counts[REWARD_COUNT_METRICS[name]] += count - before.get(name, 0)
        before.update(counts)

    def worker_started(self, worker: str) -> None:
        self._reward_counts.pop(worker, None)

    def take_timings(self) -> dict[str, float]:
        """Means over the groups that finished since the last call."""
        taken, self._timings = self._timings, []
        return {
            metric: _mean(name, taken) for name, metric in TIMING_METRICS.items() if any(name in one for one in taken)
        }

    def handle(self, group: Group, result: Result, final: bool = False) -> None:
        """A `final` failure is not retried."""
        if result.status == "failed":
            self._fail(group, result, final)
        elif group.evaluation is not None:
            self._evaluated(group, result)
        elif result.status == "rejected":
            self.loop.gate.release()
            self._drop(group, "rejected")
            self._count_rejected()
        else:
            self._accept(group, result)

    def _accept(self, group: Group, result: Result) -> None:
        """A finished group becomes ready for a batch, unless it is too old or all its rewards are equal."""
        loop = self.loop
        self._failed_in_a_row = self._rejected_in_a_row = 0
        group.facts, group.blob = result.facts, result.blob
        self._timings.append(result.timings)
        loop.record_event(
            "finished",
            group=group.number,
            row=group.row,
            row_hash=loop.row_hash(group.row),
            prompt_hash=group.facts[0].get("prompt_hash", ""),
            versions=[group.oldest_version, max(fact["version_max"] for fact in group.facts)],
            rewards=[fact["reward"] for fact in group.facts],
            lengths=[fact["length"] for fact in group.facts],
        )
        if self._is_stale(group):
            loop.gate.release()
            self._drop_stale(group)
        elif self._is_replaced(group):
            loop.gate.release()
            self._drop(group, "equal")
            self.dropped_for_batch += 1
        else:
            loop.gate.accept()
            loop.ready[group.number] = group

    def _is_stale(self, group: Group) -> bool:
        """Whether it is too old for every batch to come."""
        return self.loop.batches.next_step - group.oldest_version > self.loop.settings.max_staleness

    def _is_replaced(self, group: Group) -> bool:
        """Whether another group replaces it. All groups are accepted once a whole epoch has not filled a batch."""
        settings, length = self.loop.settings, self.loop.length
        replaces = settings.dynamic_sampling and settings.refill and not group.has_spread
        return replaces and self.dropped_for_batch < max(length.rows_per_epoch, settings.batch_size)

    def drop_stale_groups(self) -> None:
        """After a batch was formed: drops the ready groups that are too old for all later ones."""
        for group in [group for group in self.loop.ready.values() if self._is_stale(group)]:
            del self.loop.ready[group.number]
            self.loop.gate.drop()
            self._drop_stale(group)

    def _drop_stale(self, group: Group) -> None:
        self._drop(group, "stale")
        self.loop.queue.put_back(group)
        self.requeued([group], "stale")

    def leave_out_equal(self, group: Group) -> None:
        """Its place in the batch stays empty: the gate still counts it as accepted."""
        self._drop(group, "equal")

    def _drop(self, group: Group, reason: str) -> None:
        group.forget_results()
        self.counts["rejected" if reason == "rejected" else f"dropped_{reason}"] += 1
        self.loop.record_event("dropped", group=group.number, row=group.row, reason=reason)

    def may_retry(self, group: Group) -> bool:
        return group.failures < self.loop.settings.request_retries

    def count_failure(self, group: Group, result: Result) -> None:
        group.failures += 1
        group.error = group.error or result.error

    def _fail(self, group: Group, result: Result, final: bool) -> None:
        again = self.may_retry(group) and not final
        self.count_failure(group, result)
        if again:
            self.put_back(group, f"{result.error_kind}: {result.error}")
        elif group.evaluation is not None:
            self._evaluated(group, result)
        else:
            self._fail_for_good(group, result)

    def _fail_for_good(self, group: Group, result: Result) -> None:
        """Another row takes its place. A batch of failures in a row ends the run with the first error."""
        loop = self.loop
        loop.gate.release()
        self.counts["failed"] += 1
        loop.record_event("failed", group=group.number, row=group.row, kind=result.error_kind, error=group.error)
        self._first_error = self._first_error if self._failed_in_a_row else group.error
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= loop.settings.batch_size:
            loop.failure = (
                f"{FAULT_KEYS.get(result.error_kind, 'rollout')}: {self._failed_in_a_row} groups in a row failed, each "
                f"in {group.failures} tries (rollout.request_retries); the first error was: {self._first_error}"
            )

    def _count_rejected(self) -> None:
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= max(self.loop.length.rows_per_epoch, self.loop.settings.batch_size):
            self.loop.failure = (
                f"workflow.name: the workflow returned None for {self._rejected_in_a_row} rows in a row, as many as "
                "there are; let it return some trajectories"
            )

    def put_back(self, group: Group, why: str) -> None:
        """Generates it again, before any new group."""
        loop = self.loop
        if group.evaluation is None:
            loop.gate.release()
            loop.queue.put_back(group)
            self.requeued([group], why)
        elif (evaluation := loop.evaluations.of(group)) is not None:
            evaluation.put_back(group)

    def requeued(self, groups: list[Group], why: str) -> None:
        numbers = [group.number for group in groups if group.evaluation is None]
        if numbers:
            self.counts["requeued"] += len(numbers)
            self.loop.record_event("requeued", groups=numbers, why=why)

    def _evaluated(self, group: Group, result: Result) -> None:
        loop, evaluation = self.loop, self.loop.evaluations.of(group)
        if evaluation is None:
            return
        if result.status == "done":
            group.facts, group.blob = result.facts, result.blob
            evaluation.finish(group)
        elif result.status == "rejected":
            evaluation.reject()
        else:
            evaluation.fail(group)
            loop.record_event("evaluation_failed", version=evaluation.version, row=group.row, error=group.error)
        if evaluation.open == 0:
            self._close_evaluation()

    def _close_evaluation(self) -> None:
        loop = self.loop
        evaluation = loop.evaluations.close()
        oldest, newest = evaluation.versions
        loop.scores.append((oldest, evaluation.metrics(loop.settings.evaluation_max_failed_share)))
        loop.evaluated.append(evaluation)
        loop.record_event(
            "evaluated",
            version=evaluation.version,
            rows=evaluation.num_rows,
            failed=len(evaluation.failed),
            rejected=evaluation.num_rejected,
            answers=len(evaluation.facts),
            versions=[oldest, newest],
        )
        if len(evaluation.failed) == evaluation.num_rows:
            loop.failure = (
                f"valid_dataset: not one of {evaluation.num_rows} rows could be evaluated for version "
                f"{evaluation.version}; the first error was: {evaluation.failed[0].error}"
            )


def _mean(name: str, timings: list[dict[str, float]]) -> float:
    """A timing is missing where a workflow never waited for it."""
    return sum(one.get(name, 0.0) for one in timings) / len(timings)
