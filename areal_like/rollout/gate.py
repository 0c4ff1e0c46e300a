"""How many groups may be started now: as many as can still be trained on before they are too old."""


class StalenessGate:
    """Counts groups: `running` are being generated, `accepted` are finished, trained on or not.

    A group that starts under version v is trained on in batch v + `max_staleness` at the latest, because only so many
    groups may be ahead of it. What leaves `accepted` without having been trained on makes room for another.
    """

    def __init__(self, max_concurrent: int, batch_size: int, max_staleness: int, accepted: int = 0) -> None:
        self.max_concurrent = max(1, max_concurrent)
        self.batch_size = max(1, batch_size)
        self.max_staleness = max_staleness
        self.accepted = accepted
        self.running = 0

    def capacity(self, version: int, surplus: int = 0) -> int:
        """Groups that may start while the servers have this version; below 0 where there are too many already.
        `surplus` are groups that may run besides, since not all will be used."""
        fresh = (self.max_staleness + version + 1) * self.batch_size + surplus - (self.accepted + self.running)
        return min(self.max_concurrent - self.running, fresh)

    def start(self) -> None:
        self.running += 1

    def accept(self) -> None:
        """A running group is finished, and good."""
        self.running -= 1
        self.accepted += 1

    def accept_finished(self) -> None:
        """A group that was finished before this counting began."""
        self.accepted += 1

    def give_up(self) -> None:
        """A running group comes to nothing, or has to start again."""
        self.running -= 1

    def drop(self) -> None:
        """A finished group will not be trained on."""
        self.accepted -= 1
