"""The input of a sweep, and the functions that it calls. Imports no Hydra."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_like.config.problems import Problem

CHECKED_AT_MOST = 1000


@dataclass(frozen=True)
class PointResult:
    """The result of a point's run. `summary`: further columns of the table (JSON values)."""

    objective: float | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    run_dir: str | Path | None = None
    exit_code: int = 0
    stop_code: int = 0
    """Not 0: the sweep was asked to stop meanwhile, and this is its exit code; the point may have ended first."""


Check = Callable[[list[str]], Sequence[Problem]]
RunPoint = Callable[[list[str], str, int], PointResult]
RunDir = Callable[[list[str], str], str | Path]


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as given by the command line and the user's file."""

    overrides: Sequence[str]
    """All overrides except Hydra's own, swept or not, in their order."""
    trial: str
    """The trial name, resolved once; job n is `<trial>-<n>`."""
    hydra_overrides: Sequence[str] = ()
    hydra_section: Mapping[str, Any] = field(default_factory=dict)
    """The `hydra:` section of the user's file."""
    hydra_choices: Mapping[str, Any] = field(default_factory=dict)
    """Its `override hydra/...` entries, e.g. {"hydra/launcher": "joblib"}."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Config groups and their options, shipped and beside the user's file."""
    names: Sequence[str] = ()
    """The top-level keys of the experiment."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    is_secret: Callable[[str], bool] = lambda _key: False
    """Whether a key holds a secret, which must not be swept: the values would be in the records."""
    run_dir: RunDir | None = None
    """The run directory of a point, to which its job is linked before it starts."""
    dry_run: bool = False
    quiet: bool = False
    """Prints only problems."""
    checked_at_most: int = CHECKED_AT_MOST


def is_hydra_override(text: str) -> bool:
    return key_of(text).startswith(("hydra.", "hydra/"))


def hydra_parts(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of Hydra in a file: its `hydra:` section, and its `override hydra/...` defaults."""
    choices: dict[str, Any] = {}
    for entry in content.get("defaults") or []:
        for key, option in entry.items() if isinstance(entry, Mapping) else ():
            name = str(key).removeprefix("override ").strip().lstrip("/")
            if str(key).startswith("override ") and name.startswith("hydra/"):
                choices[name] = option
    return dict(content.get("hydra") or {}), choices


def key_of(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")
