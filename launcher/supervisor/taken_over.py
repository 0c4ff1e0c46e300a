"""Whether another launcher has taken the run over: then this one writes nothing more, and ends its own processes."""

from areal_like.discovery import NameStore
from areal_like.process.errors import Failure
from areal_like.process.exit_codes import FAILED
from areal_like.process.run import Run, last_attempt, taken_over_text
from launcher.runs.registry import LAUNCHER
from launcher.supervisor.failure_report import name_lost_text
from launcher.supervisor.lifecycle import RunEnding


def lost_name_ending(run: Run, names: NameStore) -> RunEnding | None:
    """How a launcher ends whose name another one may have taken."""
    if LAUNCHER not in names.lost:
        return None
    return RunEnding("lost", FAILED, name_lost_text(names.full(LAUNCHER), names.lost[LAUNCHER], run.directory))


def taken_over_ending(run: Run, attempt: int) -> RunEnding | None:
    """How a launcher ends that was stalled while another one has begun an attempt after its own, or of the same number.
    It asks before it follows from the end of a process, which may have found this out earlier."""
    text = taken_over_text(run.directory, attempt, run.run_id)
    return None if text is None else RunEnding("lost", FAILED, text)


def require_not_begun(run: Run, attempt: int) -> None:
    """Before this launcher begins the attempt. Raises Failure where another one has begun it, or a later one."""
    if (newest := last_attempt(run.directory)) >= attempt:
        begun = f"another launcher has begun attempt {newest} of this run"
        raise Failure(f"{run.directory}: {begun}; this one writes nothing more and ends")


def require_own(run: Run, attempt: int) -> None:
    """Before each change for an attempt that it has begun: it may have been stalled meanwhile. Raises Failure where
    another one has begun that attempt too, or a later one."""
    if (text := taken_over_text(run.directory, attempt, run.run_id)) is not None:
        raise Failure(text)
