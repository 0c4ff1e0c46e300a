"""What is said when a run fails: the first failure in the headline, the end of its log, and the rest in short."""

from collections.abc import Sequence
from pathlib import Path

from launcher.agent.managed_process import TAIL_LINES, ManagedProcess, ProcessExit


def headline(death: ProcessExit) -> str:
    """One line for what happened; a process that wrote down why says so itself."""
    said = f": {death.note.message}" if death.note else ""
    what = "failed" if death.code else "ended before the run did"
    return f"{death.name} {what} ({death.how}) after {death.child.age_s:.0f} s{said}"


def failure_text(first: ProcessExit, others: Sequence[ProcessExit], run_dir: Path, why: str = "") -> str:
    lines = [headline(first)]
    if why:
        lines.append(f"  {why}")
    told_all = first.note is not None and not any(line.startswith("Traceback") for line in first.last_lines)
    lines += _end_of_log(first.child, run_dir, [] if told_all else first.last_lines)
    if others:
        told = [f"{death.name} ({death.how}, {_place(death.child, run_dir)})" for death in others]
        lines.append(f"  after it: {', '.join(told)}")
    return "\n".join(lines)


def not_ready_text(missing: Sequence[ManagedProcess], limit_s: float, key: str, run_dir: Path) -> str:
    names = ", ".join(child.identity.name for child in missing)
    were = "was" if len(missing) == 1 else "were"
    lines = [f"{key}: {names} {were} not ready within {limit_s:g} s; raise it if the model is large"]
    for child in missing:
        lines += _end_of_log(child, run_dir, child.last_lines(TAIL_LINES))
    lines.append("  stacks of all processes at that moment: logs/*.stacks")
    return "\n".join(lines)


def _end_of_log(child: ManagedProcess, run_dir: Path, lines: Sequence[str]) -> list[str]:
    place = _place(child, run_dir)
    if not lines:
        return [f"  its log: {place}"]
    return [f"  the end of {place}:", *(f"    {line}" for line in lines)]


def _place(child: ManagedProcess, run_dir: Path) -> str:
    if child.log is None:
        return "no file (log.file=false)"
    return str(child.log.relative_to(run_dir)) if child.log.is_relative_to(run_dir) else str(child.log)
