"""Order of generation in asynchronous mode: training groups as far as the gate allows, evaluations in between."""

from collections.abc import Iterator

from areal_like.rollout.decisions import Decision, Fail, Finished, Requeue, Start
from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.order import View

MAX_LOSSES = 5


class AsyncOrder:
    def __init__(self) -> None:
        self._evaluate_next = True

    def next(self, view: View) -> Start | None:
        """Training and evaluation alternate where both have groups."""
        self._evaluate_next = not self._evaluate_next
        return evaluate(view) or _train(view) if self._evaluate_next else _train(view) or evaluate(view)

    def finished(self, lease: Lease, result: Result, view: View) -> Iterator[Finished | Decision]:
        yield again_or_finished(lease, result, view)

    def lost(self, lease: Lease, why: str, counts: bool = True) -> Iterator[Decision]:
        yield again_or_failed(lease, why)

    def not_received(self, lease: Lease, why: str) -> Iterator[Decision]:
        yield Requeue(lease.group, why)

    def server_gone(self, name: str) -> Iterator[Decision]:
        """Its groups stay with their workers, which request another server."""
        yield from ()

    def opened(self, groups: list[Group], view: View) -> None:
        """Groups start one by one: it opens no batch."""

    def begin_abort(self) -> bool:
        """Cancelled leases may run on: nothing depends on them."""
        return False

    def aborted(self) -> None:
        pass


def _train(view: View) -> Start | None:
    if view.capacity() <= 0:
        return None
    server = view.server_pool.choose()
    return None if server is None else Start("training", server)


def again_or_finished(lease: Lease, result: Result, view: View) -> Requeue | Finished:
    why = server_hangs(lease, result, view)
    return Requeue(lease.group, why) if why else Finished(lease.group, result)


def server_hangs(lease: Lease, result: Result, view: View) -> str:
    """Why a failure counts against no group; empty if it does."""
    is_of_server = result.status == "failed" and result.error_kind == "server"
    if not is_of_server or not view.server_pool.hangs(lease, view.settings.silence):
        return ""
    return f"{lease.server} answers nobody: {result.error}"


def again_or_failed(lease: Lease, why: str) -> Requeue | Fail:
    """A group that was lost too often fails: it may be what kills its workers."""
    group = lease.group
    if group.losses > MAX_LOSSES:
        error = f"its worker died {group.losses} times, last: {why}"
        return Fail(group, Result(lease.id, "failed", error=error, error_kind="server"))
    return Requeue(group, why)


def evaluate(view: View) -> Start | None:
    evaluations, pool = view.evaluations, view.server_pool.evaluators
    if evaluations.startable(pool.served_version) == 0:
        return None
    server = pool.choose(by_share=False, version=evaluations.held_version)
    return None if server is None else Start("evaluation", server)
