"""The guardian's watch over the launcher: if that is stopped, or hangs on a dead disk, nobody handles failures.

While processes of the run are alive the launcher beats. Before, it reads a checkpoint, and after, it sends the last
metrics and writes the summary: these waits have limits of their own, so that it hangs only where a signal has stopped
it, or in a call of the kernel.
"""

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from areal_like.config.fields import Auto
from areal_like.process.patience import AUTO_S
from launcher.agent.base import STOPPED
from launcher.supervisor.hang_log import HangLog
from launcher.supervisor.hang_watch import LEAST_BYTES, LEAST_CPU_S, MAX_GAP_S

BEAT_S, HOLD_S = 1.0, 0.1
STACKS = "launcher-0.stacks"
"""The file in the run's logs to which a launcher under a guardian writes its stacks on SIGUSR2."""
LIMIT, LOG, BEGIN, BEAT, END = "limit", "log", "begin", "beat", "end"
IN_KERNEL = "D"
"""State of a process that waits for a disk and cannot be interrupted."""


class LauncherPulse:
    """The launcher's end: it says the limits and where to log, and beats from the start of the run's processes to their
    end."""

    def __init__(self) -> None:
        self.log: HangLog | None = None
        """Of the run, once this launcher has locked it."""
        self.ends = False
        """The guardian is gone, and a thread ends all processes."""
        self._pipe: int | None = None
        self._beat_at = 0.0

    def hold(self) -> None:
        """Where this launcher ends, does not return: what has ended is no failure to recover from."""
        while self.ends:
            time.sleep(HOLD_S)

    @property
    def is_open(self) -> bool:
        """In a launcher that a guardian watches."""
        return self._pipe is not None

    def open(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe

    def limit(self, notice_s: float, limit_s: float | Auto | None) -> None:
        most_s = AUTO_S if isinstance(limit_s, str) else math.inf if limit_s is None else limit_s
        self._write(f"{LIMIT} {notice_s} {most_s}")

    def log_in(self, logs: Path, most: int) -> None:
        """The folder with the logs of the run, and the most bytes of one."""
        self.log = HangLog(logs, most)
        self._write(f"{LOG} {most} {os.fsencode(logs.absolute()).hex()}")

    def begin(self) -> None:
        self._write(BEGIN)

    def beat(self) -> None:
        if time.monotonic() - self._beat_at >= BEAT_S:
            self._beat_at = time.monotonic()
            self._write(BEAT)

    def end(self) -> None:
        self._write(END)

    def _write(self, line: str) -> None:
        if self._pipe is not None:
            with suppress(OSError):  # the guardian is gone, or does not read
                os.write(self._pipe, f"{line}\n".encode())


LAUNCHER_PULSE = LauncherPulse()
"""That of this process."""


class LauncherWatch:
    """The guardian's end. Pure."""

    def __init__(self) -> None:
        self.log: HangLog | None = None
        self._notice_s = self._limit_s = 0.0
        self._has_limits = self._beats = self._noticed = self._kills = False
        self._silent_s, self._work = 0.0, (0.0, 0.0)
        self._rest = ""

    def hear(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content.decode("ascii", "replace")).split("\n")
        for line in lines:
            word, *rest = line.split()
            if word == LIMIT:
                self._has_limits, (self._notice_s, self._limit_s) = True, map(float, rest)
            if word == LOG:
                self.log = HangLog(Path(os.fsdecode(bytes.fromhex(rest[1]))), int(rest[0]))
            self._beats, self._noticed, self._silent_s = word in (BEGIN, BEAT), False, 0.0

    def look(self, state: str, work: tuple[float, float], gap_s: float, *, writes: bool = False) -> tuple[str, bool]:
        """A message for the user, or none, and whether to kill the launcher, once. `work`: CPU seconds and bytes of its
        main thread, which may read a checkpoint for a long time. `writes`: to a terminal or pipe, whose reader may
        hold it for as long as he likes."""
        is_stopped = state in STOPPED
        cpu_s, size = work[0] - self._work[0], work[1] - self._work[1]
        works = not is_stopped and (cpu_s >= LEAST_CPU_S or size >= LEAST_BYTES)
        if works or not self._silent_s:
            self._work = work
        is_watched = self._has_limits and (self._beats or is_stopped or state == IN_KERNEL)
        self._silent_s = self._silent_s + min(gap_s, MAX_GAP_S) if is_watched and not works else 0.0
        if not is_watched or self._kills:
            self._noticed = False
            return "", False
        stopped = " (stopped by a signal)" if is_stopped else " (it waits for a disk)" if state == IN_KERNEL else ""
        text = f"launcher/0 has made no progress for {self._silent_s:.0f} s{stopped}"
        if self._silent_s >= self._limit_s and (is_stopped or not writes):
            self._kills = True
            return f"watchdog.launcher_s: {text}; it is killed with all processes of the run", True
        if self._silent_s < self._notice_s or self._noticed:
            return "", False
        self._noticed = True
        if writes and not is_stopped:
            return f"{text}: its output is not taken; until then the run has nobody who handles failures", False
        when = "not ended" if math.isinf(self._limit_s) else f"ended after {self._limit_s:g} s"
        return f"{text}; the run is {when} (watchdog.launcher_s)", False
