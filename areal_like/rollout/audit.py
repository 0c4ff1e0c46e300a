"""Audits a ledger: finds groups that were trained on too old or twice, and groups that were lost."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

PENDING, FINISHED, DROPPED, FAILED, BATCHED, TRAINED = "pending", "finished", "dropped", "failed", "batched", "trained"
LOST = "lost"
STALE = "dropped as too old"
"""Its prompt must be queued again."""
OPEN = (PENDING, FINISHED, BATCHED)
NEVER = "never submitted"

Event = dict[str, Any]


def audit(events: Iterable[Event], max_staleness: int | None = None) -> list[str]:
    """The problems of a ledger; an empty list if there are none. Without `max_staleness` the limit is that of each
    attempt, which the ledger holds."""
    state = Audit(max_staleness)
    for event in events:
        state.read(event)
    return [*state.problems, *state.losses()]


class Audit:
    """The status of each group after the events so far, without steps that were rolled back, and the problems."""

    def __init__(self, max_staleness: int | None = None) -> None:
        self._follows_attempts = max_staleness is None
        self.max_staleness = max_staleness
        self.problems: list[str] = []
        self.status: dict[int, str] = {}
        self.trained_in: dict[int, int] = {}
        self._finished: set[int] = set()
        """Finished groups in no batch."""
        self._pending: set[int] = set()
        self._oldest: dict[int, int] = {}
        """Version of the oldest token, by group."""
        self._batches: dict[int, list[int]] = {}
        self._next_step: int | None = None
        self._first_number = 0

    def read(self, event: Event) -> None:
        """Events that are not about groups are skipped."""
        reader = getattr(self, f"_read_{event['event']}", None)
        if reader is not None:
            reader(event)

    def counts(self) -> dict[str, int]:
        """Groups by status."""
        return dict(Counter(self.status.values()))

    def losses(self) -> list[str]:
        """Problems that show at the end: groups that are missing, or stale and not queued again."""
        numbers = range(self._first_number, max(self.status, default=-1) + 1)
        missing = [number for number in numbers if number not in self.status]
        problems = [f"groups {missing} were never submitted, but later ones were"] if missing else []
        stale = sorted(group for group, status in self.status.items() if status == STALE)
        return [*problems, f"groups {stale} were {STALE} and not queued again"] if stale else problems

    def _move(self, group: int, to: str, *allowed: str) -> None:
        status = self.status.get(group, NEVER)
        if status not in allowed:
            self.problems.append(f"group {group} is {to}, and was {status}")
        self.status[group] = to
        (self._finished.add if to == FINISHED else self._finished.discard)(group)
        (self._pending.add if to == PENDING else self._pending.discard)(group)

    def _read_begun(self, event: Event) -> None:
        if self._follows_attempts:
            self.max_staleness = event.get("max_staleness")

    def _read_submitted(self, event: Event) -> None:
        self._move(event["group"], PENDING, NEVER)

    def _read_finished(self, event: Event) -> None:
        self._move(event["group"], FINISHED, PENDING)
        self._oldest[event["group"]] = event["versions"][0]

    def _read_requeued(self, event: Event) -> None:
        for group in event["groups"]:
            self._move(group, PENDING, PENDING, STALE)

    def _read_dropped(self, event: Event) -> None:
        reason = event["reason"]
        self._move(
            event["group"], STALE if reason == "stale" else DROPPED, PENDING if reason == "rejected" else FINISHED
        )

    def _read_failed(self, event: Event) -> None:
        self._move(event["group"], FAILED, PENDING)

    def _read_batched(self, event: Event) -> None:
        step, groups = event["step"], event["groups"]
        for group in groups:
            self._move(group, BATCHED, FINISHED)
        newest = max(groups)
        passed = sorted(group for group in self._finished if group < newest)
        if passed:
            self.problems.append(f"batch {step} passed over finished groups {passed}")
        self._batches[step] = groups

    def _read_trained(self, event: Event) -> None:
        step, groups = event["step"], event["groups"]
        if self._next_step not in (None, step):
            self.problems.append(f"step {step} was trained where step {self._next_step} was next")
        if self._batches.get(step) != groups:
            self.problems.append(f"step {step} was trained on other groups than those of its batch")
        self._next_step = step + 1
        for group in groups:
            if group in self.trained_in:
                self.problems.append(f"group {group} was trained on in steps {self.trained_in[group]} and {step}")
            self._move(group, TRAINED, BATCHED)
            self.trained_in[group] = step
            age = step - self._oldest.get(group, step)
            if self.max_staleness is not None and age > self.max_staleness:
                self.problems.append(f"group {group} was {age} versions old in step {step}, above {self.max_staleness}")
        # How long a group may run follows from nothing in the ledger, so each step names those that are not forgotten.
        lost = sorted(self._pending.difference(event.get("pending", self._pending)))
        if lost:
            self.problems.append(f"groups {lost} were submitted, and after step {step} nothing is known of them")
            for group in lost:
                self._move(group, LOST, PENDING)

    def _read_recovered(self, event: Event) -> None:
        """A rollback to a step: groups submitted or trained on since then must be pending again."""
        step, following, pending = event["step"], event["next"], {*event["again"], *(n for n, _ in event["ready"])}
        if not self.status:
            self._first_number = following
        undone = {group for group, trained in self.trained_in.items() if trained >= step}
        unsettled = undone | {group for group, status in self.status.items() if status in OPEN}
        missing = sorted(group for group in unsettled - pending if group < following)
        if missing and not event["data_anew"]:
            self.problems.append(f"the rollback to step {step} lost groups {missing}")
        self.trained_in = {group: trained for group, trained in self.trained_in.items() if trained < step}
        twice = sorted(pending & set(self.trained_in))
        if twice:
            self.problems.append(f"groups {twice} were trained on before step {step}, and are pending after it")
        self.status = {group: status for group, status in self.status.items() if group < following}
        self.status |= dict.fromkeys(missing, DROPPED)
        self.status |= dict.fromkeys(event["again"], PENDING)
        for group, oldest in event["ready"]:
            self.status[group], self._oldest[group] = FINISHED, oldest
        self._finished = {group for group, status in self.status.items() if status == FINISHED}
        self._pending = {group for group, status in self.status.items() if status == PENDING}
        self._batches = {at: groups for at, groups in self._batches.items() if at < step}
        self._next_step = step
