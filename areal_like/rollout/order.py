"""The order of generation: what an order decides, and the state of the loop that decisions depend on."""

from collections.abc import Iterator
from typing import Protocol

from areal_like.rollout.batches import Batches
from areal_like.rollout.decisions import Decision, Finished, Open, Start
from areal_like.rollout.evaluation.schedule import EvaluationSchedule
from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.queue import GroupQueue
from areal_like.rollout.replaced_groups import ReplacedGroups
from areal_like.rollout.server_pool import ServerPool
from areal_like.rollout.settings import RolloutSettings, RunLength


class View(Protocol):
    """The state of the loop, to be read."""

    settings: RolloutSettings
    length: RunLength
    server_pool: ServerPool
    batches: Batches
    evaluations: EvaluationSchedule
    queue: GroupQueue
    replaced: ReplacedGroups
    """Since the last batch."""

    def capacity(self) -> int:
        """How many training groups may start now."""


class Order(Protocol):
    """Which group is generated next. An order keeps only whose turn it is, or the open batch."""

    def next(self, view: View) -> Start | Open | None: ...

    def opened(self, groups: list[Group], view: View) -> None:
        """The loop has taken the groups of an `Open`."""

    def finished(self, lease: Lease, result: Result, view: View) -> Iterator[Finished | Decision]: ...

    def lost(self, lease: Lease, why: str, counts: bool = True) -> Iterator[Decision]:
        """Its worker died, or its server does not answer, which counts unless that hangs."""

    def not_received(self, lease: Lease, why: str) -> Iterator[Decision]:
        """Its worker never got it."""

    def server_gone(self, name: str) -> Iterator[Decision]: ...

    def begin_abort(self) -> bool:
        """Whether the servers must abort all requests now; call `aborted` when they have."""

    def aborted(self) -> None: ...
