"""What becomes of a configuration that is right: a plan that is shown, or a start."""

import json
import sys

from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from launcher.plan import Plan, build_plan, render
from launcher.terminal import has_color, width

NOT_BUILT = (
    "this configuration is right, and its run cannot be started yet: the launcher plans processes but does not start "
    "them (docs/status.md says what is built). --dry-run shows the plan."
)


def dry_run(loaded: Loaded, as_json: bool, replace: bool = False) -> int:
    """Shows the plan; starts nothing."""
    plan = build_plan(loaded, anew=replace)
    if as_json:
        print(json.dumps(loaded.redactor.everywhere(plan.to_json()), indent=1))
    else:
        print(loaded.redactor.everywhere(plan_text(plan)), end="")
    return 0


def start(loaded: Loaded, replace: bool = False) -> int:
    """Refuses what cannot start here (exit 2); says plainly that the rest is not built yet (exit 1)."""
    plan = build_plan(loaded, anew=replace)
    refuse(loaded, plan)
    print(NOT_BUILT, file=sys.stderr)
    return 1


def refuse(loaded: Loaded, plan: Plan) -> None:
    """Raises ConfigError with every reason why this run cannot start here. What is merely not built is none."""
    against = [obstacle for obstacle in (*plan.cannot_start, *plan.needs) if not obstacle.pending]
    if against:
        problems = [Problem(o.key, o.reason, _place(loaded, o.key)) for o in against]
        raise ConfigError(problems, title="this run cannot start here:")


def plan_text(plan: Plan) -> str:
    return render(plan, color=has_color(sys.stdout), width=width())


def _place(loaded: Loaded, key: str) -> str:
    known = key in loaded.schema.keys or key in loaded.schema.sections
    return loaded.origin(key).where if known else ""
