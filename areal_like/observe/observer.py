"""Observer thread: joins the metrics of all processes per step, and sends them to display and trackers.

observer = Observer(run, on_step=progress.step, on_eval=progress.evaluation)
observer.start()
observer.rewind(step=20, attempt=1)   # at a recovery, while no process writes metrics
observer.drain()                      # at the end, when no process writes metrics any more
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal_like.config.allocation.models import generates
from areal_like.observe.evaluations import has_scores, short_error, write_evaluations
from areal_like.observe.joiner import JoinedLine, MetricJoiner, rewind_metrics
from areal_like.observe.metrics import TEXTS
from areal_like.observe.milestones import Milestones
from areal_like.observe.reading import JOINED, LineFollower, dump_lines, read_lines, values_of
from areal_like.observe.shown_samples import SHOWN, shown_text
from areal_like.observe.tracker_samples import FOLDER, Extras
from areal_like.observe.trackers.fan_out import Trackers
from areal_like.process.atomic_file import complete_lines_end
from areal_like.process.errors import Failure
from areal_like.process.identity import CONTROLLER, TRAINER, Identity
from areal_like.process.run import LEDGER, Run, last_attempt, taken_over_text

StepCallback = Callable[[int, dict[str, Any]], None]
EvaluationCallback = Callable[[int, dict[str, Any]], None]

DRAIN_S = 300.0
"""What a look at the files may take at the end."""

log = logging.getLogger(__name__)


def _ignore(step: int, values: dict[str, Any]) -> None:
    pass


class Observer:
    """Follows `metrics/*.jsonl` and appends to `metrics.jsonl`, after lines that exist already. Calls `on_step`,
    `on_eval`, `on_phase` (milestone before the first step, and its time), `on_total` (number of steps), `on_progress`
    (how far an evaluation is) and `on_sample` (a training sample to be shown) in its thread; `warn` gets messages for
    the user. `clean` removes secrets from errors of rows."""

    def __init__(
        self,
        run: Run,
        on_step: StepCallback = _ignore,
        on_eval: EvaluationCallback = _ignore,
        warn: Callable[[str], None] = log.warning,
        on_phase: Callable[[str, float], None] = lambda what, at: None,
        on_total: Callable[[int], None] = lambda steps: None,
        poll_s: float = 0.2,
        clean: Callable[[str], str] = str,
        on_progress: Callable[[str], None] = lambda text: None,
        on_sample: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.run, self.poll_s = run, poll_s
        self._on_step, self._on_eval, self._warn, self._clean = on_step, on_eval, warn, clean
        self._milestones = Milestones(run.rollouts / LEDGER, on_phase, on_total, on_progress)
        self._shown, self._on_sample = LineFollower(run.rollouts / SHOWN), on_sample
        self._path = run.directory / JOINED
        self._attempt = last_attempt(run.directory)
        """That of this launcher."""
        self._evaluations = run.evaluations
        roles = (TRAINER, CONTROLLER) if generates(run.config) else (TRAINER,)
        self._joiner = MetricJoiner({Identity(role, 0).file_name for role in roles})
        self._followers: dict[Path, LineFollower] = {}
        self._samples: dict[Path, LineFollower] = {}
        self._trackers: Trackers | None = None
        self._resumed_at = 0
        self.failure: Exception | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)

    def start(self) -> None:
        """Begins to follow."""
        self._remember()
        self._thread.start()

    def rewind(self, step: int, attempt: int) -> None:
        """Goes back to `step` completed steps; `attempt` is the one that ended. No process may write metrics. Raises
        Failure where another launcher has taken the run over meanwhile."""
        with self._lock:
            self._attempt = attempt + 1
            if self.failure is None:
                self._try(self._poll)
            if (text := self.taken_over()) is not None:
                raise Failure(text)
            rewind_metrics(self.run.directory, step, attempt)
            if self._evaluations is not None:
                write_evaluations(self._path, self._evaluations)
            self._joiner.rewind(step)
            self._followers.clear()
            if self._trackers is not None:
                self._trackers.rewind(step)

    def drain(self) -> None:
        """Reads the last lines, emits incomplete steps too, and ends. Where the thread hangs, as on a dead disk, the
        metrics are joined when the run is resumed."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(DRAIN_S)
        if self._thread.is_alive():
            self._warn(f"{self._path}: not all metrics are joined, as their files have not answered for {DRAIN_S:g} s")
            return
        with self._lock:
            if self.failure is None:
                self._try(self._look_last)
            if self._trackers is not None:
                self._trackers.close()
                self._trackers = None

    def taken_over(self) -> str | None:
        """Why this launcher may not write, if another one has the run."""
        return taken_over_text(self.run.directory, self._attempt, self.run.run_id)

    def _watch(self) -> None:
        while self.failure is None and not self._ending.wait(self.poll_s):
            with self._lock:
                self._try(self._poll)

    def _try(self, work: Callable[[], object]) -> None:
        """The run continues if the observer fails; the metrics are joined when the run is resumed."""
        try:
            work()
        except Exception as error:
            self.failure = error
            log.debug("the observer ended", exc_info=True)
            self._warn(f"{self._path}: metrics are no longer joined ({type(error).__name__}: {error})")

    def _poll(self) -> None:
        """Reads all files once. New lines are sorted by step, as the files are read one by one. Another attempt is that
        of another launcher, which joins the metrics now, or one that `rewind` is about to begin."""
        if self.taken_over() is not None:
            return
        for path in sorted(self.run.metrics.glob("*.jsonl")):
            if path not in self._followers:
                self._followers[path] = LineFollower(path)
        self._milestones.poll()
        joined: list[JoinedLine] = []
        for path, follower in self._followers.items():
            for line in follower.new_lines():
                joined += self._joiner.add(path.stem, line)
        self._pass_on(sorted(joined, key=lambda each: (each.line["step"], each.kind != "step")))
        self._pass_on_extras()
        for line in self._shown.new_lines():
            self._on_sample(shown_text(line))

    def _look_last(self) -> None:
        self._poll()
        if self.taken_over() is None:
            self._pass_on(self._joiner.flush())

    def _pass_on(self, lines: list[JoinedLine]) -> None:
        if not lines:
            return
        for joined in lines:
            for name in filter(joined.line.__contains__, TEXTS):
                text = joined.line.pop(name)
                if isinstance(text, str) and text:
                    joined.line[name] = short_error(self._clean(text))
        with self._path.open("ab") as file:
            file.write(dump_lines(joined.line for joined in lines))
        if self._evaluations is not None and any(has_scores(joined.line) for joined in lines):
            write_evaluations(self._path, self._evaluations)
        trackers = self._open_trackers()
        for kind, line in lines:
            step, values = line["step"], values_of(line)
            texts = {name: line[name] for name in TEXTS if name in line}
            trackers.log(step, values)
            if kind == "step":
                self._on_step(step, {**values, **texts})
            elif kind == "eval":
                self._on_eval(step, {**values, **texts})

    def _pass_on_extras(self) -> None:
        """Sends new extras; those from before this observer started were sent by an earlier one."""
        for path in sorted((self.run.directory / FOLDER).glob("*.jsonl")):
            follower = self._samples.setdefault(path, LineFollower(path))
            for line in follower.new_lines():
                self._open_trackers().log_extras(Extras.of(line))

    def _open_trackers(self) -> Trackers:
        """Opens the trackers at the first value to send."""
        if self._trackers is None:
            self._trackers = Trackers.of(self.run, self._warn)
            if self._resumed_at:
                self._trackers.rewind(self._resumed_at)
        return self._trackers

    def _remember(self) -> None:
        """Reads the existing lines. An incomplete last line is dropped: its values are in the processes' files."""
        lines = read_lines(self._path)
        kept = dump_lines(lines)
        if self._path.is_file() and self._path.stat().st_size != len(kept):
            self._path.write_bytes(kept)
        for line in lines:
            self._joiner.remember(line)
        self._resumed_at = self._joiner.last_step
        for path in (self.run.directory / FOLDER).glob("*.jsonl"):
            self._samples[path] = LineFollower(path, path.stat().st_size)
        if self._shown.path.is_file():
            self._shown.offset = complete_lines_end(self._shown.path)
