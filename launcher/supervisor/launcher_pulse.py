"""The guardian's watch over the launcher: if that is stopped, or hangs on a dead disk, nobody handles failures."""

import os
import time
from contextlib import suppress

from areal_like.config.fields import Auto
from launcher.supervisor.hang_watch import AUTO_S, BUSY_SHARE, LEAST_BYTES, MAX_GAP_S, STOPPED

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

    def begin(self, notice_s: float, limit_s: float | Auto) -> None:
        self._write(f"{BEGIN} {notice_s} {AUTO_S if isinstance(limit_s, str) else limit_s}")

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
        self._is_on = self._noticed = False
        self._silent_s, self._work = 0.0, (0.0, 0.0)
        self._rest = ""

    def hear(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content.decode("ascii", "replace")).split("\n")
        for line in lines:
            word, *numbers = line.split()
            if word == BEGIN:
                self._notice_s, self._limit_s = map(float, numbers)
            self._is_on, self._noticed, self._silent_s = word != END, False, 0.0

    def look(self, state: str, work: tuple[float, float], gap_s: float) -> tuple[str, bool]:
        """A message for the user, or none, and whether to kill the launcher. `work`: CPU seconds and bytes of its main
        thread, which may read a checkpoint for a long time."""
        cpu_s, size = work[0] - self._work[0], work[1] - self._work[1]
        self._work = work
        works = state not in STOPPED and (cpu_s >= BUSY_SHARE * gap_s or size >= LEAST_BYTES)
        self._silent_s = self._silent_s + min(gap_s, MAX_GAP_S) if self._is_on and not works else 0.0
        if not self._is_on:
            return "", False
        stopped = " (stopped by a signal)" if state in STOPPED else ""
        text = f"launcher/0 has made no progress for {self._silent_s:.0f} s{stopped}"
        if self._silent_s >= self._limit_s:
            return f"watchdog.launcher_s: {text}; it is killed with all processes of the run", True
        if self._silent_s >= self._notice_s and not self._noticed:
            self._noticed = True
            return f"{text}; the run is ended after {self._limit_s:g} s (watchdog.launcher_s)", False
        return "", False
