"""Queue of groups that wait for a start: by priority, and synchronous steps as a whole."""

import bisect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from areal_like.serving.requests import MAX_PRIORITY, BadRequest, GeneratedSample, GroupRequest, StepSlot

if TYPE_CHECKING:
    from areal_like.serving.engines.embedded.weights.batched_lora import ServedAdapter


@dataclass(eq=False)
class QueuedGroup:
    """A group and its progress in the engine. `limit`: most tokens of one answer; `stop_tokens`: tokens that end one;
    `num_started`: samples that have started; `turn`: its place in the order of starts; `adapter`: set at its start."""

    number: int
    group: GroupRequest
    limit: int
    stop_tokens: tuple[int, ...] = ()
    num_started: int = 0
    turn: int = 0
    adapter: "ServedAdapter | None" = None
    samples: dict[int, GeneratedSample] = field(default_factory=dict)

    @property
    def num_waiting(self) -> int:
        return self.group.n - self.num_started


@dataclass
class _Step:
    """Groups of a synchronous step by their places, of which some may be `left` without a group, and others `given_up`:
    their groups are about to be removed."""

    of: int
    groups: dict[int, QueuedGroup] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return len(self.groups) + len(self.left) == self.of


class WaitingQueue:
    """Smaller priorities first, equal ones in order of arrival. The groups of a synchronous step start when all of them
    have arrived, in the order of their places, with nothing else running: how they arrived then changes nothing. Places
    without a group are left."""

    def __init__(self) -> None:
        self._unordered: deque[QueuedGroup] = deque()
        self._steps: dict[str, _Step] = {}
        self._current_step: deque[QueuedGroup] | None = None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[QueuedGroup]:
        yield from self._current_step or ()
        for step in self._steps.values():
            yield from step.groups.values()
        yield from self._unordered

    def add(self, queued: QueuedGroup) -> None:
        slot = queued.group.order
        if slot is None:
            bisect.insort(self._unordered, queued, key=lambda one: one.group.priority)
            return
        self._step_with_free(slot).groups[slot.place] = queued

    def leave(self, slot: StepSlot) -> None:
        """No group comes for this place, or the one that has come is not awaited any more."""
        step = self._steps.get(slot.key, _Step(slot.of))
        if slot.place in step.groups or slot.place in step.left:
            step.given_up.add(slot.place)
            return
        step = self._step_with_free(slot)
        step.left.add(slot.place)
        if len(step.left) == step.of:
            del self._steps[slot.key]

    def _step_with_free(self, slot: StepSlot) -> _Step:
        """The step of a place that must be free."""
        step = self._steps.get(slot.key, _Step(slot.of))
        if step.of != slot.of:
            raise BadRequest(f"order.of: {slot.of} differs from the other groups of {slot.key}")
        if slot.place in step.groups or slot.place in step.left:
            raise BadRequest(f"order.place: another group has place {slot.place} of {slot.key} already")
        self._steps[slot.key] = step
        return step

    def head(self, is_idle: bool) -> QueuedGroup | None:
        """The next group, if any may start now; `is_idle`: nothing is running."""
        if self._current_step:
            return self._current_step[0]
        if self._current_step is not None and not is_idle:
            return None
        self._current_step = None
        complete = next((key for key, step in self._steps.items() if step.is_complete), None)
        if complete is not None:
            if not is_idle:
                return None
            groups = self._steps.pop(complete).groups
            # Of a step that began again under another key, left places alone may have stayed.
            self._steps = {key: step for key, step in self._steps.items() if step.groups}
            self._current_step = deque(groups[place] for place in sorted(groups))
            return self._current_step[0]
        return self._unordered[0] if self._unordered else None

    def remove_head(self) -> None:
        (self._unordered if self._current_step is None else self._current_step).popleft()

    def remove(self, matches: Callable[[QueuedGroup], bool]) -> list[QueuedGroup]:
        """Removes the groups that match, and returns them."""
        removed = [queued for queued in self if matches(queued)]
        self._unordered = deque(queued for queued in self._unordered if not matches(queued))
        if self._current_step is not None:
            self._current_step = deque(queued for queued in self._current_step if not matches(queued))
        for key, step in list(self._steps.items()):
            gone = {place for place, queued in step.groups.items() if matches(queued)}
            step.left |= gone & step.given_up
            step.groups = {place: queued for place, queued in step.groups.items() if place not in gone}
            if not step.groups and len(step.left) in (0, step.of):
                del self._steps[key]
        return removed

    @property
    def has_next(self) -> bool:
        """Whether a group may start once nothing else is running."""
        return bool(self._current_step or self._unordered or any(step.is_complete for step in self._steps.values()))

    @property
    def run_has_priority(self) -> bool:
        """Whether a group of the run starts next, or a synchronous step has the engine."""
        if self._current_step is not None or any(step.is_complete for step in self._steps.values()):
            return True
        return bool(self._unordered) and self._unordered[0].group.priority <= MAX_PRIORITY
