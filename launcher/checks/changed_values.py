"""Warns where a run that continues by its name gets other values than its last attempt."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.process.run import CONFIG
from launcher.plan.auto import resolved_values
from launcher.plan.plan import Resolved, RunDirectory
from launcher.plan.render_base import value_text
from launcher.runs.dependent_overrides import whole_references
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

PROVENANCE = "provenance.yaml"
MOST_KEYS = 4
SAME_RUN = ("defaults", "experiment_name", "trial_name", "cluster.fileroot", "resume", "resume_step")
"""Keys that name the run, or belong to one start."""
NOT_SET = "not set"


def changed_value_warnings(loaded: "Loaded", auto: Iterable[Resolved], directory: RunDirectory) -> Iterator[str]:
    """One line. None where the run resumes with its own configuration: then only the command line changes values."""
    run = Path(directory.path)
    if directory.state != "continues" or directory.step is None or loaded.file.resolve().parent == run.resolve():
        return
    changes = list(_changes(loaded, tuple(auto), run))
    if not changes:
        return
    shown = ", ".join(changes[:MOST_KEYS])
    more = f", and {len(changes) - MOST_KEYS} more" if len(changes) > MOST_KEYS else ""
    name = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    keep = f"`resume={name}` without --config keeps the old values"
    yield f"changed since attempt {_last_described(run, max(1, directory.attempt - 1))}: {shown}{more}; {keep}"


def _changes(loaded: "Loaded", auto: tuple[Resolved, ...], run: Path) -> Iterator[str]:
    import yaml

    from launcher.commands.show_config import values_without_secrets  # brings yaml

    before = dict(_leaves(run_config_values(run)))
    if not before:
        return
    values = values_without_secrets(loaded, resolved_values(loaded, auto))
    now = dict(_leaves(yaml.safe_load(yaml.safe_dump(values))))
    same = {*SAME_RUN, *({each.key for each in auto} & _resolved_before(run))}
    different = [key for key in (*now, *(key for key in before if key not in now)) if before.get(key) != now.get(key)]
    follows = dict(whole_references(loaded.raw))
    for key in different:
        if key not in same and follows.get(key) not in (*same, *different):
            yield f"{key} {_shown(before, key)} -> {_shown(now, key)}"


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(values: dict[str, Any], key: str) -> str:
    return value_text(values[key]) if key in values else NOT_SET


def _resolved_before(run: Path) -> set[str]:
    """Keys that were `auto` in the last attempt."""
    import yaml

    try:
        entries = yaml.safe_load((run / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return set()
    entries = entries if isinstance(entries, dict) else {}
    return {key for key, entry in entries.items() if isinstance(entry, dict) and entry.get("from") == "auto"}


def _last_described(run: Path, attempt: int) -> int:
    """The attempt that config.yaml describes: where one failed with other values, it was restored."""
    file = Path(CONFIG)
    while attempt > 1 and (run / f"{file.stem}.attempt-{attempt}{file.suffix}").is_file():
        attempt -= 1
    return attempt
