"""What becomes of a configuration that is right: a plan that is shown, or a start."""

import json
import secrets
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import get_args

from areal_like.config.limits import without_effect
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.provenance import LayerKind
from launcher.fetch import fetch_models
from launcher.plan import Plan, build_plan, render
from launcher.plan.bench import bench_unread
from launcher.plan.engines import refused_by_parser
from launcher.plan.host import Host
from launcher.plan.plan import Obstacle
from launcher.terminal import has_color, tell, width

NEEDED = ("torch", "transformers", "safetensors", "tokenizers", "numpy", "aiohttp", "orjson", "xxhash")
"""What the processes of a run import. The command line itself does without."""
LAYERS = get_args(LayerKind)
"""The weakest first."""


def dry_run(
    loaded: Loaded, as_json: bool, replace: bool = False, serves: bool = False, host: Host | None = None
) -> int:
    """Shows the plan; starts nothing. `host` is the machine that it is for, where that is not this one."""
    plan = build_plan(loaded, host=host, anew=replace, serves=serves)
    if as_json:
        print(json.dumps(loaded.redactor.everywhere(plan.to_json()), indent=1))
    else:
        print(loaded.redactor.everywhere(plan_text(plan)), end="")
    return 0


def start(loaded: Loaded, replace: bool = False, serves: bool = False) -> int:
    """Refuses what cannot start here (exit 2); runs the rest to its end, under a guardian. What only `serves` has
    servers and nothing else."""
    plan = build_plan(loaded, anew=replace, serves=serves)
    refuse(loaded, plan)
    if fetch_models(loaded):
        plan = build_plan(loaded, anew=replace, serves=serves)
        refuse(loaded, plan)
    _refuse(loaded, refused_by_parser(plan))
    for key, message in (*without_effect(loaded.config), *bench_unread(loaded)):
        tell(f"{key}: {message}", sys.stderr)
    from areal_like.process.run import memory_folder
    from launcher.guardian import guarded
    from launcher.launch import launch
    from launcher.serve import serve

    run_id = secrets.token_hex(6)
    begin = serve if serves else launch
    return guarded(lambda: begin(loaded, plan, run_id, replace), memory_folder(run_id))


def refuse(loaded: Loaded, plan: Plan) -> None:
    """Raises ConfigError with every reason why this run cannot start here."""
    _refuse(loaded, [*plan.cannot_start, *plan.needs, *missing_packages()])


def _refuse(loaded: Loaded, against: Sequence[Obstacle]) -> None:
    if against:
        problems = [Problem(o.key, o.reason, _place(loaded, o.key)) for o in against]
        raise ConfigError(problems, title="this run cannot start here:")


def missing_packages() -> list[Obstacle]:
    """Looked for, and not imported."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if not missing:
        return []
    are = "is" if len(missing) == 1 else "are"
    reason = f'{", ".join(missing)} {are} not installed; pip install "areal-like[train]" brings what a run needs'
    return [Obstacle("environment", reason)]


def plan_text(plan: Plan) -> str:
    return render(plan, color=has_color(sys.stdout), width=width())


def _place(loaded: Loaded, key: str) -> str:
    """Where a key was set; of a section that was not set as a whole, where the strongest of what is in it was."""
    if key not in loaded.schema.keys and key not in loaded.schema.sections:
        return ""
    origin = loaded.origin(key)
    if origin.kind == "default":
        below = [loaded.origin(path) for path in loaded.replay.history if path.startswith(f"{key}.")]
        origin = max(reversed(below), key=lambda each: LAYERS.index(each.kind), default=origin)
    return origin.where
