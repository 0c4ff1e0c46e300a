"""Staleness gate: how many groups may start so that none is too old when it is trained on."""

import math

from areal_like.rollout.settings import RolloutSettings


class StalenessGate:
    """Counts groups: `running` are being generated, `accepted` are finished, trained on or not.

    A group that starts under version v is trained on in batch v + `max_staleness` at the latest, because the number of
    groups before it is limited. A group that leaves `accepted` untrained makes room for another.
    """

    def __init__(self, max_concurrent: int, batch_size: int, max_staleness: int, accepted: int = 0) -> None:
        self.max_concurrent = max(1, max_concurrent)
        self.batch_size = max(1, batch_size)
        self.max_staleness = max_staleness
        self.accepted = accepted
        self.running = 0

    def capacity(self, version: int, surplus: int = 0) -> int:
        """Groups that may start while servers have this version; negative if there are too many already. `surplus`
        groups may run in addition, since not all will be used."""
        fresh = (self.max_staleness + version + 1) * self.batch_size + surplus - (self.accepted + self.running)
        return min(self.max_concurrent - self.running, fresh)

    def start(self) -> None:
        self.running += 1

    def accept(self) -> None:
        """A running group is finished and accepted."""
        self.running -= 1
        self.accepted += 1

    def accept_finished(self) -> None:
        """A group that was finished before a restart."""
        self.accepted += 1

    def release(self) -> None:
        """A running group is discarded, or has to start again."""
        self.running -= 1

    def drop(self) -> None:
        """An accepted group will not be trained on."""
        self.accepted -= 1


def free_places(settings: RolloutSettings, gate: StalenessGate, num_ready: int, version: int, total_steps: int) -> int:
    """How many groups may start: as the gate allows, without more than the run needs or may keep."""
    missing = max(0, settings.batch_size - num_ready)
    # A synchronous batch waits for all its groups: a surplus helps only if some of them may be dropped.
    leaves_out = settings.dynamic_sampling or settings.curriculum.has_gates
    oversamples = not settings.synchronous or (leaves_out and settings.refill)
    # Rounded first: 10 * 1.1 is a little more than 11.
    started = math.ceil(round(missing * settings.oversampling_factor, 6)) if oversamples else missing
    surplus = started - missing
    until_end = total_steps * settings.batch_size + surplus - gate.accepted - gate.running
    pending = settings.max_pending - num_ready - gate.running
    return min(gate.capacity(version, surplus), until_end, pending)
