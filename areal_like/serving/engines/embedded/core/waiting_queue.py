"""Queue of groups that wait for a start: by priority, and synchronous steps as a whole."""

import bisect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from areal_like.serving.requests import MAX_PRIORITY, BadRequest, GeneratedSample, GroupRequest

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


class WaitingQueue:
    """Smaller priorities first, equal ones in order of arrival. The groups of a synchronous step start when all of them
    have arrived, in the order of their places, with nothing else running: how they arrived then changes nothing."""

    def __init__(self) -> None:
        self._unordered: deque[QueuedGroup] = deque()
        self._steps: dict[str, dict[int, QueuedGroup]] = {}
        self._current_step: deque[QueuedGroup] | None = None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[QueuedGroup]:
        yield from self._current_step or ()
        for step in self._steps.values():
            yield from step.values()
        yield from self._unordered

    def add(self, queued: QueuedGroup) -> None:
        slot = queued.group.order
        if slot is None:
            bisect.insort(self._unordered, queued, key=lambda one: one.group.priority)
            return
        step = self._steps.get(slot.key, {})
        if any(other.group.order and other.group.order.of != slot.of for other in step.values()):
            raise BadRequest(f"order.of: {slot.of} differs from the other groups of {slot.key}")
        if slot.place in step:
            raise BadRequest(f"order.place: another group has place {slot.place} of {slot.key} already")
        step[slot.place] = queued
        self._steps[slot.key] = step

    def head(self, is_idle: bool) -> QueuedGroup | None:
        """The next group, if any may start now; `is_idle`: nothing is running."""
        if self._current_step:
            return self._current_step[0]
        if self._current_step is not None and not is_idle:
            return None
        self._current_step = None
        complete = next((key for key, step in self._steps.items() if _is_complete(step)), None)
        if complete is not None:
            if not is_idle:
                return None
            step = self._steps.pop(complete)
            self._current_step = deque(step[place] for place in sorted(step))
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
        kept = {
            key: {place: queued for place, queued in step.items() if not matches(queued)}
            for key, step in self._steps.items()
        }
        self._steps = {key: step for key, step in kept.items() if step}
        return removed

    @property
    def has_next(self) -> bool:
        """Whether a group may start once nothing else is running."""
        return bool(self._current_step or self._unordered or any(_is_complete(step) for step in self._steps.values()))

    @property
    def run_has_priority(self) -> bool:
        """Whether a group of the run starts next, or a synchronous step has the engine."""
        if self._current_step is not None or any(_is_complete(step) for step in self._steps.values()):
            return True
        return bool(self._unordered) and self._unordered[0].group.priority <= MAX_PRIORITY


def _is_complete(step: dict[int, QueuedGroup]) -> bool:
    slot = next(iter(step.values())).group.order
    assert slot is not None
    return len(step) == slot.of
