"""Generation in synchronous mode: the evaluation of a version, then the groups of its step, wave after wave.

A wave begins when all servers have the version of the step, and nothing is decided about its groups before all of it
is there. So timing, and who died meanwhile, never changes what is trained on.
"""

from typing import TYPE_CHECKING, Any

from areal_like.rollout.groups import Group, Lease, Result
from areal_like.rollout.sync_batch import SyncBatch

if TYPE_CHECKING:
    from areal_like.rollout.loop import RolloutLoop

MAX_RESTARTS = 10


class SyncOrder:
    def __init__(self, loop: "RolloutLoop") -> None:
        self.loop = loop
        self.wave: SyncBatch | None = None
        self._abort_wanted = self._aborting = False
        """What servers still generate of an older try has to be stopped before the next one begins."""
        self._step_starts: dict[int, tuple[int, list[Group]]] = {}
        """By step whose generation has begun: the next number and the groups to be generated again, as they were."""
        self._phase, self._num_waves = "", 0

    def next(self) -> tuple[Group, str, dict[str, Any]] | None:
        """The next group, the server that it goes to, and its place there."""
        if self._abort_wanted or self._aborting or self.loop.stopping:
            return None
        if self.wave is None:
            self.wave = self._open_wave()
        if self.wave is None or not self.wave.waiting or not self._all_servers_have(self.loop.batches.done_steps):
            return None
        group = self.wave.waiting.pop()
        server = self.loop.placement.ready[self.wave.server_of(group)]
        return group, server.name, self.wave.order_of(group)

    def _all_servers_have(self, version: int) -> bool:
        ready = self.loop.placement.ready
        return len(ready) == self.loop.settings.num_servers and all(server.version == version for server in ready)

    def _open_wave(self) -> SyncBatch | None:
        """Of the step whose weights are served, but not before the step before it is done."""
        loop, step = self.loop, self.loop.batches.done_steps
        if not self._all_servers_have(step):
            return None
        evaluation = loop.evaluations.begin(step)
        if evaluation is not None:
            return self._wave(f"eval-{step}", evaluation.take(loop.settings.evaluation_concurrent))
        if loop.batches.next_step != step or step >= loop.length.total_steps:
            return None
        if step not in self._step_starts:
            self._step_starts = {step: (loop.queue.next_number, list(loop.queue.again()))}
        count = loop.room()
        return self._wave(str(step), [loop.next_group() for _ in range(count)]) if count > 0 else None

    def _wave(self, phase: str, groups: list[Group]) -> SyncBatch:
        self._num_waves = self._num_waves + 1 if phase == self._phase else 1
        self._phase = phase
        stem = phase if self._num_waves == 1 else f"{phase}w{self._num_waves}"
        return SyncBatch(stem, groups, self.loop.settings.num_servers)

    def begin_abort(self) -> bool:
        """Whether the servers have to be told to stop what they do; `aborted` is to be called once they were."""
        if not self._abort_wanted or self._aborting:
            return False
        self._abort_wanted, self._aborting = False, True
        return True

    def aborted(self) -> None:
        self._aborting = False

    def start_of(self, step: int) -> tuple[int, list[Group]] | None:
        """None where its generation has not begun."""
        return self._step_starts.get(step)

    def result(self, lease: Lease, result: Result) -> None:
        group, wave, settling = lease.group, self.wave, self.loop.settling
        assert wave is not None, "a lease that is not void belongs to the wave under way"
        if result.status == "failed" and result.error_kind == "server" and settling.may_retry(group):
            settling.count_failure(group, result)
            self._generate_again(f"{group.name}: {result.error}")
            return
        wave.results[group.number] = result
        if wave.is_complete:
            self.wave = None
            for each in wave.groups:
                settling.settle(each, wave.results[each.number])

    def lost(self, lease: Lease, why: str) -> None:
        """Whoever had it died."""
        wave = self.wave
        if wave is None or lease.group not in wave.groups:
            return  # the wave was begun again for another lease of the same owner
        if wave.tries > MAX_RESTARTS:
            self.loop.failure = (
                f"rollout: wave {wave.stem} was generated {wave.tries} times, and each time somebody died over it, "
                f"last: {why}; the logs of episodes and servers say why"
            )
        self._generate_again(why)

    def server_gone(self, name: str) -> None:
        if self.wave is not None:
            self._generate_again(f"{name} is gone")

    def _generate_again(self, why: str) -> None:
        wave = self.wave
        assert wave is not None
        for lease in self.loop.leases:
            self.loop.void(lease)
        wave.start_again()
        self._abort_wanted = True
        self.loop.settling.requeued(wave.groups, why)
