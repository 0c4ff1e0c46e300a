"""A plan as text for a person: what matters most comes first, what to do next last."""

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper
from typing import Any

from areal_like.serving.found import TITLES
from launcher.plan.described import machine_words
from launcher.plan.plan import Plan, Setting
from launcher.plan.render_processes import process_lines

BOLD, RED, YELLOW, DIM, PLAIN = "\033[1m", "\033[31m", "\033[33m", "\033[2m", "\033[0m"
WIDEST_KEY, WIDEST_VALUE = 40, 36
NOUNS = {
    "guardian": "guardian",
    "launcher": "launcher",
    "server": "{backend} server",
    "reward": "reward model server",
    "rollout": "controller",
    "episodes": "episode worker",
    "trainer": "trainer rank",
}


def render(plan: Plan, color: bool = False, width: int = 110) -> str:
    """The text of a dry run. Colours only when asked for."""
    return "\n".join(_Page(plan.shown(), color, max(60, width)).lines()) + "\n"


class _Page:
    def __init__(self, plan: Plan, color: bool, width: int) -> None:
        self.plan, self.color, self.width = plan, color, width

    def lines(self) -> Iterator[str]:
        plan = self.plan
        yield from self._top()
        yield from self._list("cannot start here", [problem.text() for problem in plan.obstacles], RED)
        yield from self._list("warnings", list(plan.warnings), YELLOW)
        yield from self._list("a step", list(plan.batch.words))
        yield from self._auto()
        yield from self._settings()
        yield from self._beaten()
        yield from self._section("processes", process_lines(plan, self.width))
        yield from self._list("memory", [*plan.memory.words, *(f"not known: {why}" for why in plan.memory.unknown)])
        yield from self._ports()
        yield from self._cluster()
        yield from self._next()

    def _paint(self, text: str, *styles: str) -> str:
        return "".join(styles) + text + PLAIN if self.color else text

    def _section(self, title: str, lines: list[str], *styles: str) -> Iterator[str]:
        if lines:
            yield ""
            yield self._paint(title, BOLD, *styles)
            yield from lines

    def _list(self, title: str, items: list[str], *styles: str) -> Iterator[str]:
        lines = [line for item in items for line in wrapped(item, self.width, "  - ", "    ")]
        yield from self._section(f"{title} ({len(items)})" if styles else title, lines, *styles)

    def _table(self, rows: Sequence[tuple[str, ...]], widest: tuple[int, ...]) -> list[str]:
        """Aligned columns; the last one wraps."""
        sizes = [min(most, max(len(row[column]) for row in rows)) for column, most in enumerate(widest)] if rows else []
        lines = []
        for row in rows:
            first = "  " + "  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=False)) + "  "
            lines += wrapped(row[-1], self.width, first, " " * (4 + sum(sizes) + 2 * (len(sizes) - 1)))
        return lines

    def _top(self) -> Iterator[str]:
        plan, directory = self.plan, self.plan.run_directory
        yield self._paint(f"{plan.experiment}: {'/'.join(plan.run_dir.split('/')[-2:])}", BOLD)
        rows = [("file", plan.file or ""), ("run directory", f"{plan.run_dir}: {directory.state}, {directory.reason}")]
        if not plan.machine["here"]:
            rows.append(("for", f"{machine_words(plan.machine)}; nothing of this machine was looked at"))
        if (engine := plan.servers.get("engine")) is not None:
            name = f"{TITLES[engine['name']]} {engine['version']} (supported: {engine['supported']})"
            rows.append(("engine", f"{name} in {engine['python']}: {engine['where']}"))
        yield from self._table([*rows, ("would start", self._would_start())], (16,))

    def _would_start(self) -> str:
        if not self.plan.processes:
            return "nothing, as long as it is not clear what runs where"
        roles: dict[str, int] = {}
        for process in self.plan.processes:
            roles[process.role] = roles.get(process.role, 0) + 1
        nodes = 1 + max((process.node for process in self.plan.processes), default=0)
        backend = (self.plan.allocation["rollout"] or {}).get("backend", "")
        nouns = NOUNS if backend else {**NOUNS, "server": "attendant"}
        parts = [_several(count, nouns[role].format(backend=backend)) for role, count in roles.items()]
        here = "on this machine" if self.plan.machine["here"] else "on that machine"
        place = {"local": here, "slurm": "by Slurm", "ray": "on Ray"}[self.plan.cluster["type"]]
        if nodes > 1:
            place = f"on {nodes} nodes" if self.plan.cluster["type"] == "local" else f"{place} on {nodes} nodes"
        if (name := self.plan.cluster["name"]) != "local":
            place = f"{place} ({name})"
        text = f"{len(self.plan.processes)} processes {place}: {', '.join(parts)}"
        addresses = self.plan.servers["addresses"]
        return f"{text}; generation by {', '.join(addresses)}" if addresses else text

    def _auto(self) -> Iterator[str]:
        rows = [(resolved.key, f"= {show(resolved.value)}", resolved.reason) for resolved in self.plan.auto]
        yield from self._section("decided for you", self._table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _settings(self) -> Iterator[str]:
        rows = [(s.key, f"= {show(s.value)}", _story(s)) for s in self.plan.changed]
        yield from self._section("settings that differ from the default", self._table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _beaten(self) -> Iterator[str]:
        rows = [
            (b.key, f"= {show(b.value)}", f"{b.by}, in place of {show(b.written)} ({b.where})")
            for b in self.plan.beaten_body_values
        ]
        title = "values of your file that a group on the command line replaced"
        yield from self._section(title, self._table(rows, (WIDEST_KEY, WIDEST_VALUE)), YELLOW)

    def _ports(self) -> Iterator[str]:
        rows = [
            (f"{port.process} {port.purpose}", f"{port.host}:{port.port or '*'}", f"{port.policy}: {port.reason}")
            for port in self.plan.ports
        ]
        shown = rows if len(rows) <= 12 else [*rows[:10], ("...", "", f"{len(rows) - 10} more, see --dry-run=json")]
        yield from self._section("ports", self._table(shown, (WIDEST_KEY, WIDEST_VALUE)))

    def _cluster(self) -> Iterator[str]:
        cluster = self.plan.cluster
        if "script" in cluster:
            yield from self._section("sbatch script", ["  " + line for line in cluster["script"].splitlines()])
        if cluster["type"] == "ray":
            rows = [(a["process"], _resources(a["resources"]), f"bundle {a['bundle']}") for a in cluster["actors"]]
            title = f"ray actors ({cluster['strategy']}, address: {cluster['address']})"
            yield from self._section(title, self._table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _next(self) -> Iterator[str]:
        plan = self.plan
        command = plan.command
        keys = [problem.key for problem in plan.obstacles]
        if keys:
            more = f" and {len(set(keys)) - 1} more" if len(set(keys)) > 1 else ""
            advice = [f"a start would be refused (exit code 2): see to {keys[0]}{more}, then run this again"]
        else:
            advice = [f"start it:  {command}"]
        advice.append(f"all of this as data:  {command} --dry-run=json")
        advice.append("what a key means:  python -m launcher --help=KEY")
        advice.append(f"who said its value:  {command} --explain KEY")
        yield from self._section("next", [f"  {line}" for line in advice])


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _story(setting: Setting) -> str:
    """Where it was said, and what it would be otherwise."""
    before = [f"{show(beaten.value)} ({beaten.where})" for beaten in setting.beaten]
    replaced = f", in place of {', '.join(before)}" if before else ""
    return f"{setting.where}{replaced}; default {show(setting.default)}"


def _resources(resources: dict[str, int]) -> str:
    return f"CPU {resources['CPU']}, GPU {resources['GPU']}, {resources['memory'] >> 30} GiB"


def show(value: Any) -> str:
    """A value as YAML would write it, cut where it is long."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    else:
        text = str(value) if not isinstance(value, str) or value else '""'
    return text if len(text) <= WIDEST_VALUE - 2 else text[: WIDEST_VALUE - 5] + "..."


def wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    """`text` in lines, those that it has kept; the first begins with `first`, the others with `rest`."""
    if width - len(rest) < 30:
        rest = "        "
    wrapper = TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    top, *below = text.split("\n")
    lines = wrapper.wrap(top) or [first.rstrip()]
    wrapper.initial_indent = rest
    return [*lines, *(line for each in below for line in wrapper.wrap(each))]
