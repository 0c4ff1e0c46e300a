"""The report of a failed run: the first failure, the end of its log, the other failures in one line."""

import signal
from collections.abc import Sequence
from pathlib import Path

from launcher.agent.base import TAIL_LINES, ProcessExit
from launcher.supervisor.roster import RunningProcess

PORT_IN_USE = ("address already in use", "eaddrinuse")


def port_was_taken(exited: ProcessExit) -> bool:
    """As far as its last words say."""
    text = " ".join([exited.note.message if exited.note else "", *exited.last_lines]).lower()
    return any(word in text for word in PORT_IN_USE)


def headline(exited: ProcessExit) -> str:
    """One line: which process failed, how, and its own failure note if it wrote one."""
    note = f": {exited.note.message}" if exited.note else ""
    what = "failed" if exited.code else "ended before the run did"
    return f"{exited.name} {what} ({exited.how}) after {exited.age_s:.0f} s{note}"


def failure_text(first: ProcessExit, others: Sequence[ProcessExit], run_dir: Path, why: str = "") -> str:
    lines = [headline(first)]
    if why:
        lines.append(f"  {why}")
    has_note = first.note is not None and not any(line.startswith("Traceback") for line in first.last_lines)
    lines += _end_of_log(first.log, run_dir, [] if has_note else first.last_lines)
    if first.code == -signal.SIGKILL:
        lines.append(f"  it had used {first.usage.text}")
    if others:
        failures = [f"{exited.name} ({exited.how}, {_place(exited.log, run_dir)})" for exited in others]
        lines.append(f"  then failed: {', '.join(failures)}")
    return "\n".join(lines)


def name_lost_text(name: str, why: str, run_dir: Path) -> str:
    return (
        f"{name}: this launcher has lost the name of its run ({why}), so another launcher may be using {run_dir}. All "
        "processes of this one were ended and nothing more was written; continue with resume= once no other launcher "
        "uses the directory"
    )


def not_ready_text(missing: Sequence[RunningProcess], limit_s: float, key: str, run_dir: Path) -> str:
    names = ", ".join(child.identity.name for child in missing)
    were = "was" if len(missing) == 1 else "were"
    lines = [f"{key}: {names} {were} not ready within {limit_s:g} s; raise it if the model is large"]
    for child in missing:
        lines += _end_of_log(child.log, run_dir, child.last_lines(TAIL_LINES))
    lines.append("  stack traces of all processes: logs/*.stacks")
    return "\n".join(lines)


def _end_of_log(log: str, run_dir: Path, lines: Sequence[str]) -> list[str]:
    place = _place(log, run_dir)
    if not lines:
        return [f"  log: {place}"]
    return [f"  the end of {place}:", *(f"    {line}" for line in lines)]


def _place(log: str, run_dir: Path) -> str:
    if not log:
        return "no file (log.file=false)"
    return str(Path(log).relative_to(run_dir)) if Path(log).is_relative_to(run_dir) else log
