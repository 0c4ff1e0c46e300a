"""`run` and `--dry-run`: plans a valid configuration, then starts it or prints the plan."""

import json
import secrets
import sys
from collections.abc import Sequence

from areal_like.config.checks.registry import run_checks
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem, Stage
from areal_like.process.command_result import FINISHED, PLANNED, write_result
from areal_like.process.exit_codes import DONE
from areal_like.process.stop_signals import STOP_SIGNALS, handled, stop_command
from launcher.checks.plan_checks import PLAN_CHECKS
from launcher.plan.build import build_plan
from launcher.plan.changes import with_places
from launcher.plan.host import HostInfo
from launcher.plan.plan import Plan
from launcher.plan.purpose import Purpose
from launcher.plan.render import render
from launcher.plan.render_brief import render_brief, warning_lines
from launcher.runs.fetch import fetch_from_hub
from launcher.terminal import has_color, width, write_line


def dry_run(
    loaded: Loaded,
    form: str | bool,
    replace: bool = False,
    purpose: Purpose = Purpose.RUN,
    host: HostInfo | None = None,
    words: Sequence[str] | None = None,
) -> int:
    """Prints the plan: full, as JSON, or on one screen. `host`: the machine to plan for, None for this one. `words`:
    the command that starts it, None for that of the configuration."""
    plan = build_plan(loaded, host=host, replace_existing=replace, purpose=purpose, words=words)
    if form == "json":
        print(json.dumps(loaded.redactor.everywhere(plan.to_json()), indent=1))
    else:
        print(loaded.redactor.everywhere(plan_text(plan, whole=form == "full")), end="")
    write_result(plan.run_dir, PLANNED, 0)
    return 0


@handled(STOP_SIGNALS, stop_command)  # as planning and fetching take time; then guardian and launcher handle them
def start(loaded: Loaded, replace: bool = False, purpose: Purpose = Purpose.RUN) -> int:
    """Runs the plan to its end under a guardian; raises ConfigError (exit 2) where it cannot start here."""
    from areal_like.process.abandoned_memory import remove_abandoned_memory
    from areal_like.process.identity import take_token
    from launcher.runs.finished import nothing_left

    take_token()  # whoever calls the servers of the run may choose it
    remove_abandoned_memory()  # first, as the plan is for the memory that is free
    plan = build_plan(loaded, replace_existing=replace, purpose=purpose)
    refuse(plan.problems)
    if purpose is Purpose.RUN and (text := nothing_left(loaded, plan.run_directory, plan.batch.total_steps)):
        print(text)
        write_result(plan.run_dir, FINISHED, DONE)
        return DONE
    plan = fetched_plan(loaded, plan, replace, purpose)
    for line in warning_lines(plan, width()):
        write_line(loaded.redactor.everywhere(line), sys.stderr)
    from areal_like.process.run_memory import memory_folder
    from launcher.commands.serve import serve
    from launcher.commands.try_rows import try_on_servers
    from launcher.supervisor.guardian import run_guarded
    from launcher.supervisor.launch import launch

    run_id = secrets.token_hex(6)
    begin = {Purpose.RUN: launch, Purpose.SERVE: serve, Purpose.TRY: try_on_servers}[purpose]
    return run_guarded(lambda: begin(loaded, plan, run_id, replace), memory_folder(run_id))


def fetched_plan(loaded: Loaded, plan: Plan, replace: bool, purpose: Purpose) -> Plan:
    """The plan once all that it needs from the Hub is here; raises ConfigError where it cannot start."""
    if fetch_from_hub(loaded):
        plan = build_plan(loaded, replace_existing=replace, purpose=purpose)
        refuse(plan.problems)
    refuse(with_places(loaded, run_checks(PLAN_CHECKS, {"plan": plan}, Stage.CANNOT_START)))
    return plan


def refuse(problems: Sequence[Problem]) -> None:
    """Raises ConfigError with every problem that prevents a start here."""
    if problems:
        raise ConfigError(problems, title="this run cannot start here:")


def plan_text(plan: Plan, whole: bool) -> str:
    return (render if whole else render_brief)(plan, color=has_color(sys.stdout), width=width())
