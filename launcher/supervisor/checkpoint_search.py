"""Searches the newest undamaged checkpoint in a thread: every byte is read, and signals are served meanwhile."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from areal_like.process.checkpoint_files import complete_replacements, manifest_parts, resume_problem, step_of
from areal_like.process.errors import Failure
from areal_like.process.run import Run, start_checkpoint
from launcher.runs.checkpoints import complete_steps, step_folder

POLL_S, REPORT_S = 0.2, 5.0


class FoundCheckpoint(NamedTuple):
    """None: there is no undamaged checkpoint. `skipped`: messages about the damaged ones. `unread`: about those of them
    that the disk did not give."""

    checkpoint: Path | None
    skipped: tuple[str, ...]
    unread: tuple[str, ...] = ()

    @property
    def unread_text(self) -> str | None:
        """Why a run must not start over for want of a checkpoint: one may be whole, on a disk that is away."""
        if self.checkpoint is not None or not self.unread:
            return None
        remedy = "see whether the disk answers and start again, or start another run with trial_name="
        return f"cluster.fileroot: no checkpoint of the run can be read; {remedy}: {self.unread[0]}"


class SearchCancelled(Exception):
    """The result is no longer wanted."""


class CheckpointSearch:
    """Begins at once; `at_most` limits the step."""

    def __init__(self, run: Run, at_most: int | None = None) -> None:
        self._run, self._at_most = run, at_most
        self._found: FoundCheckpoint | None = None
        self._fault: BaseException | None = None
        self._is_cancelled = False
        self._candidate, self._total_bytes, self._bytes = "", 0, 0
        self._count = threading.Lock()  # several threads read
        self._read_at = time.monotonic()
        self._thread = threading.Thread(target=self._search, name="checkpoint search", daemon=True)
        self._thread.start()

    def is_done(self, wait_s: float = 0.0) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> FoundCheckpoint:
        """Of a search that is done."""
        if self._fault is not None:
            raise self._fault
        assert self._found is not None
        return self._found

    def wait(self, limit_s: float, key: str, report: Callable[[str], None]) -> FoundCheckpoint:
        """Waits in the main thread, which handles signals meanwhile. `report` is given the progress now and then.
        Raises Failure where nothing was read for `limit_s`, which `key` sets."""
        reported_at = time.monotonic()
        try:
            while not self.is_done(POLL_S):
                if (late := self.late_text(limit_s, key)) is not None:
                    raise Failure(late)
                if time.monotonic() - reported_at > REPORT_S:
                    reported_at = time.monotonic()
                    report(self.progress_text())
        finally:
            self.cancel()
        return self.result()

    def cancel(self) -> None:
        """Ends the reading at its next block."""
        self._is_cancelled = True

    def progress_text(self) -> str:
        read, total = self._bytes / 1e9, self._total_bytes / 1e9
        return f"checking {self._candidate or 'the checkpoints'} before it is loaded: {read:.1f} of {total:.1f} GB"

    def late_text(self, limit_s: float, key: str) -> str | None:
        """Why it is given up, if nothing was read for `limit_s`."""
        if time.monotonic() - self._read_at <= limit_s:
            return None
        return f"{key}: {self.progress_text()}, and nothing was read for {limit_s:g} s; see whether its disk answers"

    def _search(self) -> None:
        try:
            self._found = self._newest_undamaged()
        except OSError as fault:  # not even their names can be read
            self._found = FoundCheckpoint(None, (), (str(fault),))
        except BaseException as fault:
            self._fault = fault

    def _newest_undamaged(self) -> FoundCheckpoint:
        complete_replacements(self._run.checkpoints)
        skipped: list[str] = []
        unread: list[str] = []
        for candidate in self._candidates():
            faults: list[OSError] = []
            if (why := resume_problem(candidate, on_fault=faults.append)) is None:
                self._candidate, self._bytes = candidate.name, 0
                self._total_bytes = sum(part.bytes for part in manifest_parts(candidate).values())
                why = resume_problem(candidate, with_hashes=True, on_read=self._on_read, on_fault=faults.append)
            if why is None:
                return FoundCheckpoint(candidate, tuple(skipped))
            skipped.append(f"the checkpoint of step {step_of(candidate.name)} is skipped: {why}")
            unread += skipped[-1:] if faults else []
        return FoundCheckpoint(None, tuple(skipped), tuple(unread))

    def _on_read(self, size: int) -> None:
        if self._is_cancelled:
            raise SearchCancelled
        with self._count:
            self._bytes += size
        self._read_at = time.monotonic()

    def _candidates(self) -> list[Path]:
        """Newest first, then the checkpoint that the attempt before started from: it lies outside the run directory
        where its steps did not count."""
        directory, at_most = self._run.directory, self._at_most
        steps = [step for step in complete_steps(directory) if at_most is None or step <= at_most]
        found = [step_folder(directory, step) for step in reversed(steps)]
        if at_most is None and (earlier := start_checkpoint(directory)) is not None and earlier not in found:
            found.append(earlier)
        return found
