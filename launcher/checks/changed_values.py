"""Warns where a run that continues gets other values than its last attempt."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.problems import Problem
from areal_like.config.redact import is_secret_name, redact
from areal_like.process.run import CONFIG
from launcher.plan.auto import resolved_values
from launcher.plan.plan import Resolved, RunDirectory
from launcher.plan.render_base import FULL_FLAG, value_text
from launcher.plan.run_directory import resumed_checkpoint
from launcher.runs.dependent_overrides import whole_references
from launcher.runs.resumable import recorded_values, run_config_values

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

PROVENANCE = "provenance.yaml"
MOST_KEYS = 4
SAME_RUN = ("defaults", "experiment_name", "trial_name", "cluster.fileroot", "resume", "resume_step")
"""Keys that name the run, or belong to one start."""
NOT_SET = "not set"
MAIN_KEYS = (
    *("train_dataset.batch_size", "actor.optimizer.lr", "critic.optimizer.lr", "model.optimizer.lr"),
    *("actor.path", "critic.path", "model.path", "train_dataset.path", "gconfig.n_samples", "total_train_steps"),
)
LEARNING_SECTIONS = (
    *("gconfig", "actor", "critic", "model", "ref", "reward", "task", "train_dataset", "workflow", "rollout"),
)
"""The main keys are named first, then those of these sections, then all others."""


def changed_value_warnings(
    loaded: "Loaded", auto: Mapping[str, Resolved], directory: RunDirectory
) -> Iterator[Problem]:
    """One warning with all changed keys, and its short form."""
    run = Path(directory.path)
    if not _continues(directory):
        return
    changes = list(_changes(loaded, tuple(auto.values()), run))
    if not changes:
        return
    rest = len(changes) - MOST_KEYS
    shown = [*changes[:MOST_KEYS], f"and {rest} more ({FULL_FLAG})"] if rest > 0 else changes
    name = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    keep = f"`resume={name}` without --config keeps the old values"
    if not _has_other_file(loaded, directory):  # only the command line changes values
        keep = "leave them out to keep the old values"
    begin = f"changed since attempt {_last_described(run, max(1, directory.attempt - 1))}"
    whole, short = (f"{', '.join(pairs)}; {keep}" for pairs in (changes, shown))
    yield Problem(begin, whole, short=short)


def earlier_configuration_warnings(loaded: "Loaded", directory: RunDirectory) -> Iterator[Problem]:
    """One line where the configuration of the last attempt is incomplete, so that not all keys can be compared."""
    run = Path(directory.path)
    if not _has_other_file(loaded, directory):
        return
    before = run_config_values(run)
    missing = [name for name in loaded.values if name not in before]
    if not missing:
        return
    more = f" and {len(missing) - MOST_KEYS} more" if len(missing) > MOST_KEYS else ""
    lacks = f"has no {', '.join(missing[:MOST_KEYS])}{more}" if before else "cannot be read"
    file = f"{CONFIG} of attempt {_last_described(run, max(1, directory.attempt - 1))}"
    yield Problem(file, f"{lacks}; values that it does not have are not compared with those of this start")


def _has_other_file(loaded: "Loaded", directory: RunDirectory) -> bool:
    """Whether the run continues with another configuration file than its own."""
    return _continues(directory) and loaded.file.resolve().parent != Path(directory.path).resolve()


def _continues(directory: RunDirectory) -> bool:
    return resumed_checkpoint(directory) is not None


def _changes(loaded: "Loaded", auto: tuple[Resolved, ...], run: Path) -> Iterator[str]:
    """The keys that decide most about the training come first."""
    import yaml

    from areal_like.config.sources.yaml_file import plain_values  # these bring yaml
    from launcher.commands.show_config import values_without_secrets

    tree = run_config_values(run)
    before = dict(_leaves(tree))
    values = values_without_secrets(loaded, resolved_values(loaded, auto))
    now = dict(_leaves(plain_values(yaml.safe_dump(values)) or {}))
    if not before or not now:
        return
    keys = (*now, *(key for key in before if key not in now))
    if not loaded.values.keys() <= tree.keys():
        keys = tuple(before)
    same = {*SAME_RUN, *({each.key for each in auto} & _resolved_before(run))}
    different = [key for key in keys if _comparable(before.get(key)) != _comparable(now.get(key))]
    unnamed = {*same, *different}
    follows = dict(whole_references(loaded.raw))
    for key in sorted(different, key=_importance):
        if key not in same and follows.get(key) not in unnamed:
            shown = [_shown(loaded, values, key) for values in (before, now)]
            yield f"{value_text(loaded.redactor.text(key))} {shown[0]} -> {shown[1]}"


def _importance(key: str) -> int:
    if key in MAIN_KEYS:
        return MAIN_KEYS.index(key)
    return len(MAIN_KEYS) + (key.partition(".")[0] not in LEARNING_SECTIONS)


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _comparable(value: Any) -> str:
    """Differs for true and 1, and is alike for nan."""
    return json.dumps(value, sort_keys=True)


def _shown(loaded: "Loaded", values: dict[str, Any], key: str) -> str:
    if key not in values:
        return NOT_SET
    below_secret = any(is_secret_name(name) for name in key.split("."))
    return value_text(redact(key, loaded.redactor.value(key, values[key]), marked=below_secret))


def _resolved_before(run: Path) -> set[str]:
    """Keys that were `auto` in the last attempt."""
    entries = recorded_values(run / PROVENANCE)
    return {key for key, entry in entries.items() if isinstance(entry, dict) and entry.get("from") == "auto"}


def _last_described(run: Path, attempt: int) -> int:
    """The attempt that config.yaml describes: where one failed with other values, it was restored."""
    file = Path(CONFIG)
    while attempt > 1 and (run / f"{file.stem}.attempt-{attempt}{file.suffix}").is_file():
        attempt -= 1
    return attempt
