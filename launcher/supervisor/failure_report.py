"""The report of a failed run: the first failure, the end of its log, the other failures in one line."""

from collections.abc import Sequence
from pathlib import Path

from launcher.agent.managed_process import TAIL_LINES, ManagedProcess, ProcessExit


def headline(exited: ProcessExit) -> str:
    """One line: which process failed, how, and its own failure note if it wrote one."""
    note = f": {exited.note.message}" if exited.note else ""
    what = "failed" if exited.code else "ended before the run did"
    return f"{exited.name} {what} ({exited.how}) after {exited.child.age_s:.0f} s{note}"


def failure_text(first: ProcessExit, others: Sequence[ProcessExit], run_dir: Path, why: str = "") -> str:
    lines = [headline(first)]
    if why:
        lines.append(f"  {why}")
    has_note = first.note is not None and not any(line.startswith("Traceback") for line in first.last_lines)
    lines += _end_of_log(first.child, run_dir, [] if has_note else first.last_lines)
    if others:
        failures = [f"{exited.name} ({exited.how}, {_place(exited.child, run_dir)})" for exited in others]
        lines.append(f"  then failed: {', '.join(failures)}")
    return "\n".join(lines)


def not_ready_text(missing: Sequence[ManagedProcess], limit_s: float, key: str, run_dir: Path) -> str:
    names = ", ".join(child.identity.name for child in missing)
    were = "was" if len(missing) == 1 else "were"
    lines = [f"{key}: {names} {were} not ready within {limit_s:g} s; raise it if the model is large"]
    for child in missing:
        lines += _end_of_log(child, run_dir, child.last_lines(TAIL_LINES))
    lines.append("  stack traces of all processes: logs/*.stacks")
    return "\n".join(lines)


def _end_of_log(child: ManagedProcess, run_dir: Path, lines: Sequence[str]) -> list[str]:
    place = _place(child, run_dir)
    if not lines:
        return [f"  log: {place}"]
    return [f"  the end of {place}:", *(f"    {line}" for line in lines)]


def _place(child: ManagedProcess, run_dir: Path) -> str:
    if child.log is None:
        return "no file (log.file=false)"
    return str(child.log.relative_to(run_dir)) if child.log.is_relative_to(run_dir) else str(child.log)
