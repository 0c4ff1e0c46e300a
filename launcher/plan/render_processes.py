"""The processes of a plan as text: a line per placement, a command line per role."""

import shlex
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.plan.plan import Plan, Process

MAX_LINES_PER_ROLE = 8


def process_lines(plan: "Plan", width: int) -> list[str]:
    """The launcher's own command is printed at the end of the page."""
    common = _common(plan)
    lines = []
    for _, group in groupby(plan.processes, key=lambda process: process.role):
        processes = list(group)
        lines += _places(processes)
        if processes[0].env:
            lines += _folded(_words(processes), width, "      ")
            own = [(name, value) for name, value in processes[0].env.items() if name not in common]
            lines += _folded([f"{name}={_value(processes, name, value)}" for name, value in own], width, "      ")
    if common:
        lines.append("  every process but the first two:")
        lines += _folded([f"{name}={shlex.quote(value)}" for name, value in common.items()], width, "      ")
    return lines


def _common(plan: "Plan") -> dict[str, str]:
    """The variables that all processes share."""
    environments = [process.env for process in plan.processes if process.env]
    if len(environments) < 2:
        return {}
    first = environments[0]
    return {name: value for name, value in first.items() if all(env.get(name) == value for env in environments)}


def _places(processes: list["Process"]) -> list[str]:
    rows = [_place([process]) for process in processes]
    if len(rows) > MAX_LINES_PER_ROLE:
        rows = [_place(list(group)) for _, group in groupby(processes, key=lambda process: process.node)]
    return [f"  {name:<16}{place:<34}{log}".rstrip() for name, place, log in rows]


def _place(processes: list["Process"]) -> tuple[str, str, str]:
    first, last = processes[0], processes[-1]
    several = first is not last
    name = f"{first.name}..{last.index}" if several else first.name
    gpus = sorted({gpu for process in processes for gpu in process.gpus})
    cores = sorted({core for process in processes for core in process.cores})
    parts = [f"node {first.node}"]
    if gpus:
        parts.append(f"GPU{'s' if len(gpus) > 1 else ''} {ranges(gpus)}")
    if cores:
        parts.append(f"core{'s' if len(cores) > 1 else ''} {ranges(cores)}")
    if first.env:
        each = " each" if several else ""
        parts.append(f"{first.threads} thread{'s' if first.threads > 1 else ''}{each}")
    return name, ", ".join(parts), _logs(processes)


def _logs(processes: list["Process"]) -> str:
    """One path for all, relative to the run directory."""
    first, number = processes[0], f"-{processes[0].index}"
    folder, _, file = first.log.rpartition("/")
    file = file if len(processes) == 1 else file.replace(number, "-*", 1)
    return f"{folder.rpartition('/')[2]}/{file}" if file else ""


def _words(processes: list["Process"]) -> list[str]:
    """The command of the first process; arguments that differ are shown as a range."""
    words = []
    for place, word in enumerate(processes[0].command):
        column = list(dict.fromkeys(process.command[place] for process in processes))
        if len(column) > 1 and all(item.isdigit() for item in column):
            words.append(f"{column[0]}..{column[-1]}")
        else:
            words.append(word if word.startswith("<") and word.endswith(">") else shlex.quote(word))
    return words


def _value(processes: list["Process"], name: str, value: str) -> str:
    column = list(dict.fromkeys(process.env.get(name, "") for process in processes))
    if len(column) == 1:
        return value if value.startswith("<") else shlex.quote(value)
    if all(item.isdigit() for item in column):
        return f"{column[0]}..{column[-1]}"
    if name == "AREAL_LIKE_PROCESS":
        return f"{column[0]}..{column[-1].rpartition('/')[2]}"
    return " | ".join(column) if len(column) <= 4 else f"{column[0]} | ... | {column[-1]}"


def ranges(numbers: list[int]) -> str:
    """0-3,6"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _folded(words: list[str], width: int, indent: str) -> list[str]:
    """Wraps a command with the shell's backslash, so that it can be copied."""
    lines, line = [], indent
    for word in words:
        if len(line) + len(word) + 3 > width and line.strip():
            lines.append(line + " \\")
            line = indent + "    "
        line += word if not line.strip() else " " + word
    return [*lines, line] if line.strip() else lines
