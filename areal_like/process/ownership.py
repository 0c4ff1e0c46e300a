"""Whether a run directory still belongs to an attempt, or another launcher has begun one."""

import time
from typing import Self

from areal_like.process.errors import FinalFailure
from areal_like.process.identity import launched_attempt, launched_owner
from areal_like.process.run import Run, last_attempt, newest_start, taken_over_text


class Ownership:
    """A process that was stalled, or cut off, may come back after another launcher has taken its run over: `require`
    before every change in the run directory. What it has read counts for `valid_s`, which is less than it takes another
    launcher to take over: time passes while a process is stopped, too."""

    def __init__(self, run: Run, attempt: int, valid_s: float = 0.0) -> None:
        self._directory, self._attempt, self._valid_s = run.directory, attempt, valid_s
        self._owner = launched_owner() or newest_start(run.directory)[1]
        self._read_at = float("-inf")

    @classmethod
    def of_process(cls, run: Run, valid_s: float = 0.0) -> Self:
        """By the attempt for which this process was started; one that is started by hand belongs to the newest."""
        return cls(run, launched_attempt() or last_attempt(run.directory), valid_s)

    def require(self) -> None:
        """Raises the failure that ends this process if the run is not its own any more."""
        now = time.monotonic()
        if now - self._read_at < self._valid_s:
            return
        if (text := taken_over_text(self._directory, self._attempt, self._owner)) is not None:
            raise FinalFailure(text)
        self._read_at = now
