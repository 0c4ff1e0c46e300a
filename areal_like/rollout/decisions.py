"""Decisions about groups. `loop` applies them; nothing else changes its state."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.server_pool import PooledServer
from areal_like.rollout.settings import RolloutSettings

Source = Literal["training", "evaluation"]
REPLACED = ("equal", "difficulty")
"""Reasons for which a group is left out whose answers are right or wrong alike."""


class Start(NamedTuple):
    """A group starts: the next one of its source, or one of the open synchronous batch."""

    take: Source | Group
    server: PooledServer
    slot: dict[str, Any] | None = None

    def lease(self, group: Group, worker: str, priority: int, settings: RolloutSettings, now: float) -> Lease:
        sampling = settings.sampling if group.evaluated is None else group.evaluated.sampling
        return Lease(
            id=f"{group.name}.{group.tries}",
            group=group,
            worker=worker,
            server=self.server.name,
            address=self.server.address,
            tokens=group.n * sampling["max_new_tokens"],
            deadline=now + settings.lease_limit_s,
            priority=priority,
            slot=self.slot,
        )


class Open(NamedTuple):
    """The next groups of a source become the synchronous batch."""

    take: Source
    num_groups: int


class Finished(NamedTuple):
    """A group to be decided on: accepted, dropped, generated again or failed."""

    group: Group
    result: Result


class Accept(NamedTuple):
    group: Group
    result: Result


class Drop(NamedTuple):
    group: Group
    result: Result
    reason: Literal["stale", "equal", "difficulty", "rejected"]


class Requeue(NamedTuple):
    """It is generated again, before any new group. `failure` counts as one of its tries."""

    group: Group
    why: str
    failure: Result | None = None


class Fail(NamedTuple):
    """It is not tried again."""

    group: Group
    result: Result


class Restart(NamedTuple):
    """The synchronous batch is generated again. `failure` counts as a try of its group; `ends_run` is the reason why
    the run cannot continue."""

    groups: Sequence[Group]
    why: str
    failure: Finished | None = None
    ends_run: str = ""


Decision = Accept | Drop | Requeue | Fail | Restart
