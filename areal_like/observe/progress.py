"""Live progress of a run: lines that are redrawn on a terminal, plain lines elsewhere.

    progress = ProgressDisplay(total_steps=160, max_staleness=2, diagnosis=RunDiagnosis(config))
    progress.say("grpo-addition/r0001 in runs/grpo-addition/r0001")
    progress.phase("servers ready", 5.1)
    progress.step(12, {"reward/mean": 0.71, ...})
    progress.evaluation(10, {"eval/score": 0.62})
    progress.tick()                        # now and then, to update the remaining time
    progress.close()

It may be called from several threads. Other output must go through `say`, or it would be overwritten.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from areal_like.config.control_characters import escape_controls
from areal_like.observe.diagnosis import RunDiagnosis
from areal_like.observe.evaluations import evaluation_text, has_value, headline_metric, without_benchmark
from areal_like.observe.history import History
from areal_like.observe.view import panel, plain_line

MIN_LINE_INTERVAL_S = 0.5
"""Minimum time between two plain lines."""
REDRAW_S = 0.1
STATUS_S = 10.0
"""Minimum time between two lines about an evaluation that runs."""


class ProgressDisplay:
    """`max_staleness`: the bound shown beside the staleness, if it has one. `diagnosis`: its findings about each step
    are shown. `max_failed_share`: the limit that is shown where an evaluation has no score."""

    def __init__(
        self,
        total_steps: int | None,
        max_staleness: int | None = None,
        diagnosis: RunDiagnosis | None = None,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_failed_share: float | None = None,
    ) -> None:
        self.history = History(total_steps)
        self._max_staleness = max_staleness
        self._diagnosis = diagnosis
        self._max_failed_share = max_failed_share
        self._stream = stream or sys.stdout
        self._live = is_live(self._stream) if live is None else live
        self._unicode = "utf" in (getattr(self._stream, "encoding", None) or "").lower()
        self._clock = clock
        self._lock = threading.Lock()
        self._drawn = 0
        self._printed_at = self._drawn_at = float("-inf")
        self._closed = False

    def set_total(self, total_steps: int) -> None:
        """Sets the number of steps, which may only be known once the data is read."""
        with self._lock:
            self.history.total_steps = total_steps

    def say(self, text: str) -> None:
        """Prints lines that are not redrawn."""
        with self._lock:
            self._print(text)

    def phase(self, what: str, seconds: float) -> None:
        """A milestone before the first step."""
        self.say(f"  {what} {seconds:.1f} s")

    def status(self, text: str) -> None:
        """How far an evaluation is, of a run without steps: a line that is redrawn on a terminal, elsewhere one now and
        then."""
        with self._lock:
            now = self._clock()
            if self._live and not self._closed:
                self._erase()
                self._write(f"{escape_controls(text)}\n")
                self._drawn = 1
            elif now - self._printed_at >= STATUS_S:
                self._printed_at = now
                self._print(text)

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """A completed step."""
        with self._lock:
            now = self._clock()
            self.history.add_step(step, values, now)
            last = self.history.total_steps is not None and step >= self.history.total_steps
            if self._live:
                self._draw(now)
            elif last or now - self._printed_at >= MIN_LINE_INTERVAL_S:
                self._printed_at = now
                self._print(plain_line(self.history, now, self._max_staleness))
            for line in self._diagnosis.check(step, values) if self._diagnosis is not None else ():
                self._print(line)

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """The result of an evaluation: one line. On a terminal, whose view has the score, only the reason for a missing
        one."""
        with self._lock:
            now = self._clock()
            self.history.add_evaluation(step, values, now)
            if self._live:
                self._draw(now)
            text = evaluation_text(step, values, self._max_failed_share)
            shown = without_benchmark(values)
            is_in_view = self._live and has_value(shown, headline_metric(shown) or "")
            if text is not None and not is_in_view:
                self._print(text)

    def tick(self) -> None:
        """Updates the times on a terminal; does nothing elsewhere."""
        with self._lock:
            now = self._clock()
            if self._live and self.history.step and now - self._drawn_at >= 1.0:
                self._draw(now, force=True)

    def close(self) -> None:
        """Draws the last view, which stays."""
        with self._lock:
            if self._live and self.history.step and not self._closed:
                self._draw(self._clock(), force=True)
            self._drawn = 0
            self._closed = True

    def _print(self, text: str) -> None:
        self._erase()
        self._write(escape_controls(text) + "\n")
        if self._live and self.history.step and not self._closed:
            self._draw(self._clock(), force=True)

    def _draw(self, now: float, force: bool = False) -> None:
        if self._closed or (not force and now - self._drawn_at < REDRAW_S):
            return
        self._drawn_at = now
        columns = shutil.get_terminal_size((100, 24)).columns
        lines = panel(self.history, now, self._max_staleness, columns - 1)
        self._erase()
        self._write("".join(f"{line}\n" for line in lines))
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        if not self._unicode:
            text = text.encode("ascii", "replace").decode("ascii")
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the reader, the terminal or the disk space is gone; the run continues
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def is_live(stream: TextIO) -> bool:
    """Whether lines of the stream can be redrawn."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")
