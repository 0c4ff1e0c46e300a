"""Decides what happens to a finished group: ready for a batch, dropped, generated again or failed."""

from areal_like.rollout.decisions import Accept, Drop, Fail, Requeue
from areal_like.rollout.groups import Group, Result, has_spread, oldest_version
from areal_like.rollout.order import View
from areal_like.rollout.settings import RolloutSettings, RunLength

FAULT_KEYS = {
    "reward": "reward.name",
    "workflow": "workflow.name",
    "infrastructure": "",
    "environment": "environments.train",
    "row": "train_dataset.path",
    "server": "rollout.backend",
}
"""The configuration key to blame, by kind of failure; none where a key is not the cause."""


def decide(group: Group, result: Result, view: View) -> Accept | Drop | Requeue | Fail:
    if result.status == "failed":
        if may_retry(group, view.settings):
            return Requeue(group, f"{result.error_kind}: {result.error}", failure=result)
        return Fail(group, result)
    if result.status == "rejected":
        return Drop(group, result, "rejected")
    if group.evaluation is None and is_stale(oldest_version(result.facts), view):
        return Drop(group, result, "stale")
    if group.evaluation is None and replaces_others(view):
        settings = view.settings
        if settings.dynamic_sampling and not has_spread(result.facts, settings.vote_rule):
            return Drop(group, result, "equal")
        if not view.queue.curriculum.admits(group, result.facts):
            return Drop(group, result, "difficulty")
    return Accept(group, result)


def may_retry(group: Group, settings: RolloutSettings) -> bool:
    return group.failures < settings.request_retries


def is_stale(version: int, view: View) -> bool:
    """Whether a group of this version is too old for every batch to come."""
    return view.batches.next_step - version > view.settings.max_staleness


def replaces_others(view: View) -> bool:
    """Whether other groups replace those that are left out. All groups are accepted once a whole epoch has not filled
    a batch."""
    settings = view.settings
    limit = max(view.length.rows_per_epoch, settings.batch_size)
    return settings.refill and view.replaced.count < limit


class Streaks:
    """Training groups in a row that gave nothing. Each method returns the reason why the run cannot continue, or an
    empty text."""

    def __init__(self, settings: RolloutSettings, length: RunLength) -> None:
        self._max_failed, self.length = settings.batch_size, length
        self._failed = self._rejected = 0
        self._first_error = ""

    def done(self) -> None:
        self._failed = self._rejected = 0

    def rejected(self) -> str:
        self._rejected += 1
        if self._rejected < max(self.length.rows_per_epoch, self._max_failed):
            return ""
        return (
            f"workflow.name: the workflow returned None for {self._rejected} rows in a row, as many as there are; let "
            "it return some trajectories"
        )

    def failed(self, group: Group, kind: str) -> str:
        self._first_error = self._first_error if self._failed else group.error
        self._failed += 1
        if self._failed < self._max_failed:
            return ""
        key = FAULT_KEYS.get(kind, "rollout")
        return (
            f"{key}{': ' if key else ''}{self._failed} groups in a row failed, each in {group.failures} tries "
            f"(rollout.request_retries); the first error was: {self._first_error}"
        )
