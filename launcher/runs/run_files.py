"""The files that describe a run in its directory: config.yaml, run.json, provenance.yaml, ... No secrets; atomic.

Each file describes the newest start. A further start keeps the old version as `NAME.until-attempt-K`, K being the last
attempt that it described.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from areal_like.config.loaded import Loaded
from areal_like.process.atomic_file import fsync_path, replace_with_backup, write_atomic
from areal_like.process.run import ATTEMPT, COMMAND, CONFIG, RUN_FACTS, StartPoint
from launcher.commands.show_config import values_without_secrets
from launcher.plan.auto import resolved_values
from launcher.plan.plan import Plan
from launcher.runs.dependent_overrides import whole_references

VERSION = 1
PROVENANCE = "provenance.yaml"
ENDING_FILES = ("summary.json", "curve.svg")
"""Files about the end of the last start."""


def write_start_point(run_dir: Path, start: StartPoint, require: Callable[[], None] = lambda: None) -> None:
    """Writes where the processes of an attempt begin. `require` raises where the run has another launcher now."""
    content = start._asdict() | {"checkpoint": None if start.checkpoint is None else str(start.checkpoint)}
    write_atomic(run_dir / ATTEMPT, json.dumps(content) + "\n", require)
    for folder in (run_dir, *run_dir.parents[:2]):  # a new folder is lost with its entry, whatever is synced in it
        fsync_path(folder)


def read_facts(run_dir: Path) -> dict[str, Any]:
    """The content of run.json; empty where there is none."""
    path = run_dir / RUN_FACTS
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return facts


def write_description(
    loaded: Loaded, plan: Plan, run_id: str, folder: Path, cwd: Path, attempt: int, serves: bool = False
) -> None:
    """Writes all files that describe a start, before its processes read them. `serves`: only servers."""
    run_dir = Path(plan.run_dir)
    for name in ("logs", "metrics", "checkpoints"):
        (run_dir / name).mkdir(exist_ok=True)
    replace_file(run_dir / CONFIG, config_text(loaded, plan), attempt)
    replace_file(run_dir / COMMAND, f"{plan.command}\n", attempt)
    facts = {
        "run_id": run_id,
        "experiment": loaded.experiment,
        "schema": loaded.schema_name,
        "folder": str(folder),
        "cwd": str(cwd),
        "serves": serves,
        "follows": {**_follows_of_before(loaded, run_dir), **dict(whole_references(loaded.raw))},
        "version": VERSION,
    }
    replace_file(run_dir / RUN_FACTS, json.dumps(facts, indent=1) + "\n", attempt)
    replace_file(run_dir / PROVENANCE, provenance_text(loaded, plan), attempt)
    for name in ENDING_FILES:
        replace_file(run_dir / name, None, attempt)


def _follows_of_before(loaded: Loaded, run_dir: Path) -> dict[str, str]:
    """References recorded by earlier starts: the run's own configuration no longer contains them."""
    is_own = loaded.file.resolve().parent == run_dir.resolve()
    follows: dict[str, str] = read_facts(run_dir).get("follows", {}) if is_own else {}
    return follows


def config_text(loaded: Loaded, plan: Plan) -> str:
    """The resolved configuration of this run: every `auto` decided, no references except those to secrets. Valid in
    YAML 1.1 and 1.2."""
    values = values_without_secrets(loaded, resolved_values(loaded, plan.auto))
    values |= {"resume": None, "resume_step": None}  # belong to one start
    head = (
        "# The configuration of this run. `--config` with this file and trial_name=auto starts another run with it.\n"
    )
    return head + _yaml({"defaults": [{"experiment": loaded.experiment}], **values})


def provenance_text(loaded: Loaded, plan: Plan) -> str:
    """Where each value that is not the default was set, which values it replaced, and the reason for each `auto`."""
    entries: dict[str, Any] = {}
    for setting in plan.changed:
        entry = {"value": setting.value, "from": setting.where}
        if setting.beaten:
            entry["beats"] = [f"{weaker.value} ({weaker.where})" for weaker in setting.beaten]
        entries[setting.key] = entry
    for resolved in plan.auto:
        entries[resolved.key] = {"value": resolved.value, "from": "auto", "because": resolved.reason}
    return "# Every value that is not the schema's default, and where it was set.\n" + _yaml(
        loaded.redactor.everywhere(entries)
    )


def restore_configuration(run_dir: Path, attempt: int) -> bool:
    """Restores the configuration of the attempts before this one, which failed, so that the run can be resumed as it
    was. The failed one is kept as `config.attempt-K.yaml`. Returns whether they differ."""
    differs = earlier_version(run_dir / CONFIG, attempt).is_file()
    for name in (CONFIG, PROVENANCE):
        path = run_dir / name
        if earlier_version(path, attempt).is_file():
            write_atomic(path.with_name(f"{path.stem}.attempt-{attempt}{path.suffix}"), path.read_bytes())
            earlier_version(path, attempt).replace(path)
    return differs


def replace_file(path: Path, text: str | None, attempt: int) -> None:
    """Writes the file for `attempt`, or removes it (`text` is None); the earlier version is kept."""
    replace_with_backup(path, text, earlier_version(path, attempt))


def earlier_version(path: Path, attempt: int) -> Path:
    """Where the version of before `attempt` is kept."""
    return path.with_name(f"{path.stem}.until-attempt-{attempt - 1}{path.suffix}")


def _yaml(tree: Any) -> str:
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))
