"""The guardian's watch over the launcher: if that is stopped, or hangs on a dead disk, nobody handles failures."""

import math
import os
import time
from contextlib import suppress

from areal_like.config.fields import Auto
from launcher.agent.base import STOPPED
from launcher.supervisor.hang_watch import AUTO_S, LEAST_BYTES, LEAST_CPU_S, MAX_GAP_S

BEAT_S = 1.0
BEGIN, BEAT, END = "begin", "beat", "end"


class LauncherPulse:
    """The launcher's end: it beats from the start of the run's processes to their end."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._beat_at = 0.0

    def open(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe

    def begin(self, notice_s: float, limit_s: float | Auto | None) -> None:
        most_s = AUTO_S if isinstance(limit_s, str) else math.inf if limit_s is None else limit_s
        self._write(f"{BEGIN} {notice_s} {most_s}")

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
        self._notice_s = self._limit_s = 0.0
        self._is_on = self._noticed = self._kills = False
        self._silent_s, self._work = 0.0, (0.0, 0.0)
        self._rest = ""

    def hear(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content.decode("ascii", "replace")).split("\n")
        for line in lines:
            word, *numbers = line.split()
            if word == BEGIN:
                self._notice_s, self._limit_s = map(float, numbers)
            self._is_on, self._noticed, self._silent_s = word != END, False, 0.0

    def look(self, state: str, work: tuple[float, float], gap_s: float, *, writes: bool = False) -> tuple[str, bool]:
        """A message for the user, or none, and whether to kill the launcher, once. `work`: CPU seconds and bytes of its
        main thread, which may read a checkpoint for a long time. `writes`: to a terminal or pipe, whose reader may
        hold it for as long as he likes."""
        is_stopped = state in STOPPED
        cpu_s, size = work[0] - self._work[0], work[1] - self._work[1]
        works = not is_stopped and (cpu_s >= LEAST_CPU_S or size >= LEAST_BYTES)
        if works or not self._silent_s:
            self._work = work
        self._silent_s = self._silent_s + min(gap_s, MAX_GAP_S) if self._is_on and not works else 0.0
        if not self._is_on or self._kills:
            return "", False
        stopped = " (stopped by a signal)" if is_stopped else ""
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
