"""A plan on one screen (`--dry-run`): processes, a step, problems, and what the file and the command line set.

What does not fit is counted, with a hint to `--dry-run=full`.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from areal_like.config.problems import plural
from launcher.plan.plan import BaseSetting, Plan, Process
from launcher.plan.render_base import FULL_FLAG, RED, YELLOW, PlanPage, value_text, wrapped
from launcher.plan.render_processes import ranges

SCREEN_LINES = 40
MOST_PROBLEMS, MOST_WARNINGS, FEWEST_LINES, FEWEST_SETTINGS = 8, 6, 2, 2


def render_brief(plan: Plan, color: bool = False, width: int = 100) -> str:
    """The text of `--dry-run`, with colours if `color`."""
    return "\n".join(_BriefPage(plan.shown(), color, max(60, width)).lines()) + "\n"


def warning_lines(plan: Plan, width: int) -> list[str]:
    """The first warnings, wrapped, and the number of further ones."""
    shown, rest = plan.warnings[:MOST_WARNINGS], plan.warnings[MOST_WARNINGS:]
    short = [plan.short_warnings.get(warning, warning) for warning in shown]
    lines = [line for warning in short for line in wrapped(f"warning: {warning}", width, "", "    ")]
    return [*lines, f"and {plural(len(rest), 'more warning')}: {FULL_FLAG}"] if rest else lines


class _BriefPage(PlanPage):
    def lines(self) -> Iterator[str]:
        above = [*self._top(), *self._problems(), *self._warnings(), *self._processes()]
        below = [*self.replaced(), *self._next()]
        above += self._step(SCREEN_LINES - len(above) - len(below) - FEWEST_SETTINGS - 2)
        yield from above
        yield from self._set(SCREEN_LINES - len(above) - len(below))
        yield from below

    def _top(self) -> Iterator[str]:
        directory = self.plan.run_directory
        yield self.title()
        why = "" if directory.state == "new" else f", {directory.reason}"
        rows = [
            ("file", _relative(self.plan.file or "")),
            ("run directory", f"{_relative(directory.path)}: {directory.state}{why}"),
        ]
        yield from self.table([*rows, *self.machine(), *self.engine()], (16,))

    def _problems(self) -> Iterator[str]:
        problems = self.plan.problems
        items = [problem.text() for problem in problems[:MOST_PROBLEMS]]
        if rest := problems[MOST_PROBLEMS:]:
            keys = ", ".join(dict.fromkeys(problem.key for problem in rest))
            items.append(f"and {len(rest)} more, of {keys}: {FULL_FLAG}")
        lines = [line for item in items for line in wrapped(item, self.width, "  - ", "    ")]
        yield from self.section(f"cannot start here ({len(problems)})", lines, RED)

    def _warnings(self) -> Iterator[str]:
        warnings = self.plan.warnings
        items = [self.plan.short_warnings.get(warning, warning) for warning in warnings[:MOST_WARNINGS]]
        if rest := len(warnings) - len(items):
            items.append(f"and {rest} more: {FULL_FLAG}")
        lines = [line for item in items for line in wrapped(item, self.width, "  - ", "    ")]
        yield from self.section(f"warnings ({len(warnings)})", lines, YELLOW)

    def _processes(self) -> Iterator[str]:
        count = len(self.plan.processes)
        if not count:
            yield from self.section("processes", ["  none: there is no valid allocation"])
            return
        rows = []
        for role, group in groupby(self.plan.processes, key=lambda process: process.role):
            if role not in ("guardian", "launcher"):
                processes = list(group)
                rows.append((_names(processes), self.noun(role), _places(processes, self.num_nodes)))
        title = f"{plural(count, 'process', 'processes')} {self.place()}, including guardian and launcher"
        if addresses := self.plan.servers["addresses"]:
            title += f"; generation by {', '.join(addresses)}"
        yield from self.section(title, self.table(rows, (24, 24)))

    def _step(self, max_lines: int) -> Iterator[str]:
        """As many items as fit beside problems and warnings; none is cut."""
        words = self.plan.batch.words
        shown = [wrapped(word, self.width, "  - ", "    ") for word in words]
        most = max(FEWEST_LINES, max_lines - 2)
        if sum(map(len, shown)) > most:
            while len(shown) > 1 and sum(map(len, shown)) >= most:
                shown.pop()
            shown.append([f"  - and {len(words) - len(shown)} more: {FULL_FLAG}"])
        yield from self.section(self.batch_title(), [line for lines in shown for line in lines])

    def _set(self, max_lines: int) -> Iterator[str]:
        """Keys set by the command line, with the values they replace; keys that follow from the name of a dataset; keys
        set by the file over its defaults."""
        typed = [f"{_pair(s)} ({_before(s)})" for s in self.plan.over_base if s.typed]
        written = [_pair(s) for s in self.plan.over_base if not s.typed and not s.known]
        most = max(FEWEST_SETTINGS, max_lines - 2)
        pairs = [("the command line", pair) for pair in typed]
        pairs += [(s.where, _pair(s)) for s in self.plan.over_base if s.known and not s.typed]
        pairs += [(Path(self.plan.file or "the file").name, pair) for pair in written]
        lines, count = self._pair_lines(pairs), len(pairs)
        while len(lines) > most and count > 1:
            count -= 1
            lines = [*self._pair_lines(pairs[:count]), f"  - and {len(pairs) - count} more: {FULL_FLAG}"]
        yield from self.section("set over the file's defaults", lines)

    def _pair_lines(self, pairs: list[tuple[str, str]]) -> list[str]:
        items = [
            f"{place}: {', '.join(pair for _, pair in group)}"
            for place, group in groupby(pairs, key=lambda pair: pair[0])
        ]
        return [line for item in items for line in wrapped(item, self.width, "  - ", "    ")]

    def _next(self) -> Iterator[str]:
        command = self.plan.command
        whole = f"{command} {FULL_FLAG}" if self.plan.machine["here"] else f"this command again, with {FULL_FLAG}"
        refusal = wrapped(self.refusal(), self.width, "  ", "  ") if self.plan.problems else []
        first = refusal or [f"  start it:        {command}"]
        yield from self.section("next", [*first, f"  the whole plan:  {whole}"])


def _pair(setting: BaseSetting) -> str:
    return f"{setting.key}={value_text(setting.value)}"


def _before(setting: BaseSetting) -> str:
    if isinstance(setting.base, dict) and setting.value is None:
        return "was a section"
    return "as it was" if setting.base == setting.value else f"was {value_text(setting.base)}"


def _names(processes: list[Process]) -> str:
    first, last = processes[0], processes[-1]
    return first.name if first is last else f"{first.name}..{last.index}"


def _places(processes: list[Process], num_nodes: int) -> str:
    """Nodes, GPUs, cores and threads of the processes of one role."""
    nodes = sorted({process.node for process in processes})
    gpus = sorted({gpu for process in processes for gpu in process.gpus})
    cores = sorted({core for process in processes for core in process.cores})
    parts = [f"node{'s' if len(nodes) > 1 else ''} {ranges(nodes)}"] if num_nodes > 1 else []
    for noun, places in (("GPU", gpus), ("core", cores)):
        if places:
            parts.append(f"{noun}{'s' if len(places) > 1 else ''} {ranges(places)}")
    each = " each" if len(processes) > 1 else ""
    return ", ".join([*parts, plural(processes[0].threads, "thread") + each])


def _relative(path: str) -> str:
    """Relative to the working directory, if below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
