"""Groups that wait, and the rule by which they are let in."""

import bisect
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from areal_like.serving.requests import MAX_PRIORITY, BadRequest, GeneratedSample, GroupRequest

if TYPE_CHECKING:
    from areal_like.serving.embedded.weights.batched_lora import ServedAdapter


@dataclass(eq=False)
class QueuedGroup:
    """A group on its way through the engine. `limit`: most tokens of one answer; `ends`: tokens that end one;
    `admitted`: samples that began; `turn`: how many groups had begun by then, itself included; `adapter`: what it is
    generated with, once it has begun; `deadline`: when its time is over, by the monotonic clock."""

    number: int
    group: GroupRequest
    limit: int
    ends: tuple[int, ...] = ()
    admitted: int = 0
    turn: int = 0
    adapter: "ServedAdapter | None" = None
    deadline: float = math.inf
    samples: dict[int, GeneratedSample] = field(default_factory=dict)

    @property
    def num_waiting(self) -> int:
        return self.group.n - self.admitted


class WaitingQueue:
    """Smaller priorities first, and first come, first served among equals, but for synchronous steps: the groups of one
    are let in when all of them are there, in the order of their places, and have the engine to themselves. When and how
    they arrived then changes nothing."""

    def __init__(self) -> None:
        self._unordered: deque[QueuedGroup] = deque()
        self._steps: dict[str, dict[int, QueuedGroup]] = {}
        self._current: deque[QueuedGroup] | None = None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[QueuedGroup]:
        yield from self._current or ()
        for step in self._steps.values():
            yield from step.values()
        yield from self._unordered

    def add(self, ticket: QueuedGroup) -> None:
        order = ticket.group.order
        if order is None:
            bisect.insort(self._unordered, ticket, key=lambda one: one.group.priority)
            return
        step = self._steps.get(order.key, {})
        if any(other.group.order and other.group.order.of != order.of for other in step.values()):
            raise BadRequest(f"order.of: {order.of} is not what the other groups of {order.key} say")
        if order.place in step:
            raise BadRequest(f"order.place: another group has place {order.place} of {order.key} already")
        step[order.place] = ticket
        self._steps[order.key] = step

    def head(self, is_idle: bool) -> QueuedGroup | None:
        """Who is next, if anyone may begin now; `is_idle`: nothing is running."""
        if self._current:
            return self._current[0]
        if self._current is not None and not is_idle:
            return None
        self._current = None
        complete = next((key for key, step in self._steps.items() if _is_complete(step)), None)
        if complete is not None:
            if not is_idle:
                return None
            step = self._steps.pop(complete)
            self._current = deque(step[place] for place in sorted(step))
            return self._current[0]
        return self._unordered[0] if self._unordered else None

    def begun(self, ticket: QueuedGroup) -> None:
        """The head has begun with all its samples, and waits no longer."""
        (self._unordered if self._current is None else self._current).popleft()

    def remove(self, is_meant: Callable[[QueuedGroup], bool]) -> list[QueuedGroup]:
        """Takes those out that are meant, and returns them."""
        removed = [ticket for ticket in self if is_meant(ticket)]
        self._unordered = deque(ticket for ticket in self._unordered if not is_meant(ticket))
        if self._current is not None:
            self._current = deque(ticket for ticket in self._current if not is_meant(ticket))
        kept = {
            key: {place: one for place, one in step.items() if not is_meant(one)} for key, step in self._steps.items()
        }
        self._steps = {key: step for key, step in kept.items() if step}
        return removed

    @property
    def has_next(self) -> bool:
        """Whether anyone may begin once nothing else is running."""
        return bool(self._current or self._unordered or any(_is_complete(step) for step in self._steps.values()))

    @property
    def holds_clients_back(self) -> bool:
        """Whether a group of a run is the next to begin, or a synchronous step has the engine."""
        if self._current is not None or any(_is_complete(step) for step in self._steps.values()):
            return True
        return bool(self._unordered) and self._unordered[0].group.priority <= MAX_PRIORITY


def _is_complete(step: dict[int, QueuedGroup]) -> bool:
    order = next(iter(step.values())).group.order
    assert order is not None
    return len(step) == order.of
