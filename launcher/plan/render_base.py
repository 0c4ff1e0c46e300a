"""Building blocks of a plan's text: sections, tables, names of processes, values."""

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.engines import engine_keys
from launcher.plan.plan import Plan
from launcher.plan.target_machine import machine_text

BOLD, RED, YELLOW, DIM, PLAIN = "\033[1m", "\033[31m", "\033[33m", "\033[2m", "\033[0m"
WIDEST_KEY, WIDEST_VALUE = 40, 36
FULL_FLAG = "--dry-run=full"
NOUNS = {
    "guardian": "guardian",
    "launcher": "launcher",
    "server": "{backend} server",
    "reward": "reward model server",
    "rollout": "controller",
    "episodes": "episode worker",
    "trainer": "trainer rank",
}


class PlanPage:
    """A plan without secrets, to be printed in `width` columns."""

    def __init__(self, plan: Plan, color: bool, width: int) -> None:
        self.plan, self.color, self.width = plan, color, width
        self.num_nodes = 1 + max((process.node for process in plan.processes), default=0)

    def paint(self, text: str, *styles: str) -> str:
        return "".join(styles) + text + PLAIN if self.color else text

    def section(self, title: str, lines: list[str], *styles: str) -> Iterator[str]:
        if lines:
            yield ""
            yield self.paint(title, BOLD, *styles)
            yield from lines

    def items(self, title: str, items: list[str], *styles: str) -> Iterator[str]:
        lines = [line for item in items for line in wrapped(item, self.width, "  - ", "    ")]
        yield from self.section(f"{title} ({len(items)})" if styles else title, lines, *styles)

    def table(self, rows: Sequence[tuple[str, ...]], widest: tuple[int, ...]) -> list[str]:
        """Aligned columns; the last one wraps."""
        sizes = [min(most, max(len(row[column]) for row in rows)) for column, most in enumerate(widest)] if rows else []
        lines = []
        for row in rows:
            first = "  " + "  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=False)) + "  "
            lines += wrapped(row[-1], self.width, first, " " * (4 + sum(sizes) + 2 * (len(sizes) - 1)))
        return lines

    def title(self) -> str:
        return self.paint(f"{self.plan.experiment}: {'/'.join(self.plan.run_dir.split('/')[-2:])}", BOLD)

    def machine(self) -> list[tuple[str, str]]:
        """The machine of the plan, where it is not this one."""
        if self.plan.machine["here"]:
            return []
        return [("for", f"{machine_text(self.plan.machine)}; this machine was not inspected")]

    def engine(self) -> list[tuple[str, str]]:
        """The installations of external engines."""
        found = []
        for role in ("engine", "evaluation_engine"):
            if (engine := self.plan.servers.get(role)) is not None:
                name = f"{engine_keys(engine['name']).title} {engine['version']} (supported: {engine['supported']})"
                check = "its own parser checks its flags at the start"
                found.append(("engine", f"{name} in {engine['python']}: {engine['where']}; {check}"))
        return found

    def noun(self, role: str) -> str:
        backend = (self.plan.allocation["rollout"] or {}).get("backend", "")
        noun = NOUNS[role].format(backend=backend) if backend or role != "server" else "attached server"
        number = self.plan.servers.get("evaluating", 0) if role == "server" else 0
        own = (self.plan.allocation.get("evaluators") or {}).get("backend", "")
        kind = f" {own}" if number and own != backend else ""
        return f"{noun}, {number}{kind} for evaluations" if number else noun

    def batch_title(self) -> str:
        return "evaluated" if self.plan.allocation.get("eval_only") else "a step"

    def place(self) -> str:
        """On which machines the processes run."""
        here = "on this machine" if self.plan.machine["here"] else "on that machine"
        place = {"local": here, "slurm": "by Slurm", "ray": "on Ray"}[self.plan.cluster["type"]]
        if self.num_nodes > 1:
            nodes = f"on {self.num_nodes} nodes"
            place = nodes if self.plan.cluster["type"] == "local" else f"{place} {nodes}"
        name = self.plan.cluster["name"]
        return place if name == "local" else f"{place} ({name})"

    def refusal(self) -> str:
        """Why a start would be refused; empty where it would start."""
        keys = list(dict.fromkeys(problem.key for problem in self.plan.problems))
        if not keys:
            return ""
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        return f"a start would be refused (exit code 2): correct {keys[0]}{more}, then run this again"

    def replaced(self) -> Iterator[str]:
        """Values of the file that a group on the command line replaced, which is rarely intended."""
        rows = [
            (b.key, f"= {value_text(b.value)}", f"{b.by}, in place of {value_text(b.written)} ({b.where})")
            for b in self.plan.beaten_body_values
        ]
        title = "values of your file that a group on the command line replaced"
        yield from self.section(title, self.table(rows, (WIDEST_KEY, WIDEST_VALUE)), YELLOW)


def value_text(value: Any) -> str:
    """A value as YAML writes it, shortened."""
    from areal_like.config.describe.yaml_text import scalar_text  # brings yaml

    text = escape_controls(value, keep="") if isinstance(value, str) and value else scalar_text(value)
    return text if len(text) <= WIDEST_VALUE - 2 else text[: WIDEST_VALUE - 5] + "..."


def wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    """Wraps `text`; the first line begins with `first`, the others with `rest`."""
    if width - len(rest) < 30:
        rest = "        "
    wrapper = TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(escape_controls(text)) or [first.rstrip()]
