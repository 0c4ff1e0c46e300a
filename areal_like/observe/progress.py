"""The live view of a run: a few lines that change on a terminal, plain lines everywhere else.

    progress = Progress(total_steps=160, max_staleness=2, health=Health(config))
    progress.say("grpo-addition/r0001 in runs/grpo-addition/r0001")
    progress.phase("servers ready", 5.1)
    progress.step(12, {"reward/mean": 0.71, ...})
    progress.evaluation(10, {"eval/score": 0.62})
    progress.tick()                        # now and then, so that the remaining time runs down
    progress.close()

It may be called from several threads. Whatever else is to be shown goes through `say`, or it would be overwritten.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from areal_like.observe.diagnosis import RunDiagnosis
from areal_like.observe.evaluations import evaluation_text, has_value, headline_metric, score_remarks
from areal_like.observe.history import History
from areal_like.observe.view import panel, plain_line

MIN_LINE_INTERVAL_S = 0.5
"""Between two plain lines, however fast the steps are."""
REDRAW_S = 0.1


class ProgressDisplay:
    """`max_staleness` is the bound, shown beside the staleness; None where it means nothing. `health` looks at every
    step, and what it finds is said."""

    def __init__(
        self,
        total_steps: int | None,
        max_staleness: int | None = None,
        health: RunDiagnosis | None = None,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.history = History(total_steps)
        self._max_staleness = max_staleness
        self._health = health
        self._stream = stream or sys.stdout
        self._live = is_live(self._stream) if live is None else live
        self._unicode = "utf" in (getattr(self._stream, "encoding", None) or "").lower()
        self._clock = clock
        self._lock = threading.Lock()
        self._drawn = 0
        self._said_at = self._drawn_at = float("-inf")
        self._closed = False

    def set_total(self, total_steps: int) -> None:
        """Once the number of steps is known: it may follow from the length of the data."""
        with self._lock:
            self.history.total_steps = total_steps

    def say(self, text: str) -> None:
        """A line, or some, that stay."""
        with self._lock:
            self._print(text)

    def phase(self, what: str, seconds: float) -> None:
        """Something on the way to the first step that is done, and when."""
        self.say(f"  {what} {seconds:.1f} s")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """A completed step."""
        with self._lock:
            now = self._clock()
            self.history.add_step(step, values, now)
            last = self.history.total_steps is not None and step >= self.history.total_steps
            if self._live:
                self._draw(now)
            elif last or now - self._said_at >= MIN_LINE_INTERVAL_S:
                self._said_at = now
                self._print(plain_line(self.history, now, self._max_staleness))
            for line in self._health.look(step, values) if self._health is not None else ():
                self._print(line)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """The result of an evaluation. The lines of later steps repeat the score: of one in between is said what they
        leave out. The panel of a terminal shows all but why there is no score."""
        with self._lock:
            now = self._clock()
            self.history.add_evaluation(step, values, now)
            if self._live:
                self._draw(now)
            text, is_known = evaluation_text(step, values), has_value(values, headline_metric(values) or "")
            is_an_end = step in (0, self.history.total_steps)
            if text is not None and (not is_known or (not self._live and (is_an_end or score_remarks(values)))):
                self._print(text)

    def tick(self) -> None:
        """Lets the time run on a terminal; does nothing elsewhere."""
        with self._lock:
            now = self._clock()
            if self._live and self.history.step and now - self._drawn_at >= 1.0:
                self._draw(now, force=True)

    def close(self) -> None:
        """Leaves the last view where it is."""
        with self._lock:
            if self._live and self.history.step and not self._closed:
                self._draw(self._clock(), force=True)
            self._drawn = 0
            self._closed = True

    def _print(self, text: str) -> None:
        self._erase()
        self._write(text + "\n")
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
        except OSError:  # its reader, its terminal or the room on its disk is gone, and the run goes on all the same
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def is_live(stream: TextIO) -> bool:
    """Whether lines on it can be drawn over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")
