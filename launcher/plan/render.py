"""The full text of a plan (`--dry-run=full`): problems first, next steps last."""

from collections.abc import Iterator

from areal_like.config.problems import plural
from launcher.plan.plan import ChangedSetting, Plan
from launcher.plan.render_base import RED, WIDEST_KEY, WIDEST_VALUE, YELLOW, PlanPage, value_text
from launcher.plan.render_processes import process_lines


def render(plan: Plan, color: bool = False, width: int = 110) -> str:
    """The text of `--dry-run=full`, with colours if `color`."""
    return "\n".join(_FullPage(plan.shown(), color, max(60, width)).lines()) + "\n"


class _FullPage(PlanPage):
    def lines(self) -> Iterator[str]:
        plan = self.plan
        yield from self._top()
        yield from self.items("cannot start here", [problem.text() for problem in plan.problems], RED)
        yield from self.items("warnings", list(plan.warnings), YELLOW)
        yield from self.items(self.batch_title(), list(plan.batch.words))
        yield from self._auto()
        yield from self._settings()
        yield from self.replaced()
        yield from self._unread()
        yield from self.section("processes", process_lines(plan, self.width))
        yield from self.items("memory", [*plan.memory.words, *(f"unknown: {why}" for why in plan.memory.unknown)])
        yield from self._ports()
        yield from self._cluster()
        yield from self._next()

    def _top(self) -> Iterator[str]:
        plan, directory = self.plan, self.plan.run_directory
        yield self.title()
        rows = [("file", plan.file or ""), ("run directory", f"{plan.run_dir}: {directory.state}, {directory.reason}")]
        yield from self.table([*rows, *self.machine(), *self.engine(), ("would start", self._would_start())], (16,))

    def _would_start(self) -> str:
        if not self.plan.processes:
            return "nothing: there is no valid allocation"
        roles: dict[str, int] = {}
        for process in self.plan.processes:
            roles[process.role] = roles.get(process.role, 0) + 1
        parts = [plural(count, self.noun(role)) for role, count in roles.items()]
        text = f"{len(self.plan.processes)} processes {self.place()}: {', '.join(parts)}"
        addresses = self.plan.servers["addresses"]
        return f"{text}; generation by {', '.join(addresses)}" if addresses else text

    def _auto(self) -> Iterator[str]:
        rows = [(resolved.key, f"= {value_text(resolved.value)}", resolved.reason) for resolved in self.plan.auto]
        yield from self.section("resolved (auto)", self.table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _settings(self) -> Iterator[str]:
        rows = [(s.key, f"= {value_text(s.value)}", _provenance(s)) for s in self.plan.changed]
        yield from self.section("settings that differ from the default", self.table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _unread(self) -> Iterator[str]:
        rows = [(each.key, each.where, each.reason) for each in self.plan.unread_body_values]
        title = "values of your file that this run does not read"
        yield from self.section(title, self.table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _ports(self) -> Iterator[str]:
        rows = [
            (f"{port.process} {port.purpose}", f"{port.host}:{port.port or '*'}", f"{port.policy}: {port.reason}")
            for port in self.plan.ports
        ]
        shown = rows if len(rows) <= 12 else [*rows[:10], ("...", "", f"{len(rows) - 10} more, see --dry-run=json")]
        yield from self.section("ports", self.table(shown, (WIDEST_KEY, WIDEST_VALUE)))

    def _cluster(self) -> Iterator[str]:
        cluster = self.plan.cluster
        if "script" in cluster:
            yield from self.section("sbatch script", ["  " + line for line in cluster["script"].splitlines()])
        if cluster["type"] == "ray":
            rows = [(a["process"], _resources(a["resources"]), f"bundle {a['bundle']}") for a in cluster["actors"]]
            title = f"ray actors ({cluster['strategy']}, address: {cluster['address']})"
            yield from self.section(title, self.table(rows, (WIDEST_KEY, WIDEST_VALUE)))

    def _next(self) -> Iterator[str]:
        command = self.plan.command
        advice = [self.refusal() or f"start it:  {command}"]
        is_here = self.plan.machine["here"]
        data = f"{command} --dry-run=json" if is_here else "this command again, with --dry-run=json"
        advice.append(f"all of this as data:  {data}")
        advice.append("what a key means:  python -m launcher --help=KEY")
        advice.append(f"where it was set:  {command} --explain KEY")
        yield from self.section("next", [f"  {line}" for line in advice])


def _provenance(setting: ChangedSetting) -> str:
    """Where it was set, the values it replaced, and the default."""
    before = [f"{value_text(beaten.value)} ({beaten.where})" for beaten in setting.beaten]
    replaced = f", in place of {', '.join(before)}" if before else ""
    return f"{setting.where}{replaced}; default {value_text(setting.default)}"


def _resources(resources: dict[str, int]) -> str:
    return f"CPU {resources['CPU']}, GPU {resources['GPU']}, {resources['memory'] >> 30} GiB"
