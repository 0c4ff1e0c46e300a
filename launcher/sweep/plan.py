"""Plans a sweep before anything starts: Hydra's settings, the points, and the overrides for Hydra."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from areal_like.config.problems import ConfigError, Problem
from launcher.sweep.hydra_root import HydraRoot
from launcher.sweep.hydra_session import HydraSettings, flat, hydra_settings
from launcher.sweep.points import SweepPoints, expand, first_line
from launcher.sweep.request import SweepRequest, key_of

PARAMS = "hydra.sweeper.params"


@dataclass(frozen=True)
class SweepPlan:
    root: HydraRoot
    settings: HydraSettings
    points: SweepPoints
    hydra_overrides: Sequence[str]
    """Overrides of Hydra's own settings; `hydra.sweeper.params` become arguments instead."""


def plan_sweep(request: SweepRequest) -> SweepPlan:
    """Raises ConfigError where Hydra's settings or the sweep are invalid; the points are checked later."""
    params, hydra_overrides = _own_params(request.hydra_overrides)
    root = HydraRoot(
        groups={name: list(options) for name, options in request.groups.items()},
        names=list(request.names),
        placeholders=list(request.groups),
        hydra=request.hydra_section,
        hydra_choices=request.hydra_choices,
    )
    with hydra_settings(root, hydra_overrides) as (settings, loader):
        _check_settings(settings)
        points = expand(
            request.overrides,
            loader=loader,
            params={**settings.params, **params},
            optimizing=settings.optimizing,
            aliases=request.aliases,
            is_secret=request.is_secret,
        )
    hydra_overrides = [text for text in hydra_overrides if key_of(text) != "hydra.sweep.dir"]
    if settings.params:
        hydra_overrides.append(f"{PARAMS}=null")
    root = replace(root, names=_names(root, points), placeholders=_placeholders(root, points))
    if request.dry_run:
        root, hydra_overrides = _for_dry_run(root, settings, hydra_overrides)
    return SweepPlan(root, settings, points, hydra_overrides)


def _own_params(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Splits off `hydra.sweeper.params` from the overrides: Hydra accepts neither dotted keys nor unquoted sweeps
    there."""
    params: dict[str, Any] = {}
    others = []
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.lstrip("+")
        if name.startswith(f"{PARAMS}."):
            params[name.removeprefix(f"{PARAMS}.")] = _unquoted(value)
        elif name == PARAMS and value.startswith("{"):
            params |= flat(_parsed(text))
        else:
            others.append(text)
    return params, others


def _parsed(text: str) -> dict[Any, Any]:
    try:
        value = OverridesParser.create().parse_override(text).value()
    except HydraException as error:
        message = f"must be {{key: 'sweep', ...}}, each sweep in quotes ({first_line(error)})"
        raise ConfigError([Problem(PARAMS, message, f"override {text}")]) from error
    assert isinstance(value, dict)
    return value


def _names(root: HydraRoot, points: SweepPoints) -> list[str]:
    """Top-level keys, also unknown ones that are swept: the check refuses them, not Hydra."""
    swept = [
        key_of(swept_key.key).partition(".")[0]
        for swept_key in points.swept_keys
        if key_of(swept_key.key) not in root.groups
    ]
    return list(dict.fromkeys([*root.names, *(name for name in swept if "@" not in name and "/" not in name)]))


def _placeholders(root: HydraRoot, points: SweepPoints) -> list[str]:
    """Hydra selects options only for groups in its defaults list, and adds (`+`) only groups that are not in it."""
    added = {key_of(swept_key.key) for swept_key in points.swept_keys if swept_key.key.startswith("+")}
    packaged = [key_of(swept_key.key) for swept_key in points.swept_keys if "@" in swept_key.key]
    return [name for name in dict.fromkeys([*root.groups, *packaged]) if name not in added]


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _check_settings(settings: HydraSettings) -> None:
    problems = []
    direction = direction_of(settings.options)
    if direction not in ("minimize", "maximize"):
        message = f"{direction}: a run has one objective; use minimize or maximize"
        problems.append(Problem("hydra.sweeper.direction", message))
    if settings.chdir:
        message = "runs use the working directory of the command; leave it false"
        problems.append(Problem("hydra.job.chdir", message))
    if problems:
        raise ConfigError(problems)


def direction_of(options: Mapping[str, Any]) -> str:
    direction = options.get("direction", "minimize")
    return str(getattr(direction, "name", direction))


def _for_dry_run(root: HydraRoot, settings: HydraSettings, overrides: Sequence[str]) -> tuple[HydraRoot, list[str]]:
    """A dry run plans its points in this process and does not add made-up objectives to a stored study."""
    kept = [text for text in overrides if not key_of(text).startswith(("hydra/launcher", "hydra.launcher"))]
    if settings.options.get("storage") is not None:
        kept.append("hydra.sweeper.storage=null")
    section = {key: value for key, value in root.hydra.items() if key != "launcher"}
    choices = {name: option for name, option in root.hydra_choices.items() if name != "hydra/launcher"}
    return replace(root, hydra=section, hydra_choices=choices), kept
