"""What a run directory says of its run: written under a temporary name, then renamed, and without any secret.

Each file describes the newest start. What a further start would write over is kept as `NAME.until-attempt-K`, K being
the last attempt that it described.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from areal_like.config.loaded import Loaded
from areal_like.process.atomic_file import replace_with_backup, write_atomic
from areal_like.process.run import ATTEMPT, COMMAND, CONFIG, RUN_FACTS, StartPoint
from launcher.commands.show_config import values_without_secrets
from launcher.plan.auto import resolved_values
from launcher.plan.plan import Plan
from launcher.runs.dependent_overrides import whole_references

VERSION = 1
PROVENANCE = "provenance.yaml"
ENDING_FILES = ("summary.json", "curve.svg")
"""How the last start ended."""


def write_start_point(run_dir: Path, start: StartPoint) -> None:
    """Where the processes of an attempt begin."""
    said = start._asdict() | {"checkpoint": None if start.checkpoint is None else str(start.checkpoint)}
    write_atomic(run_dir / ATTEMPT, json.dumps(said) + "\n")


def read_facts(run_dir: Path) -> dict[str, Any]:
    """What run.json says; nothing where there is none."""
    path = run_dir / RUN_FACTS
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return said


def write_description(
    loaded: Loaded, plan: Plan, run_id: str, folder: Path, cwd: Path, attempt: int, serves: bool = False
) -> None:
    """Everything that a start says of itself before its processes begin to read it. `serves`: it is servers alone."""
    run_dir = Path(plan.run_dir)
    for name in ("logs", "metrics", "checkpoints"):
        (run_dir / name).mkdir(exist_ok=True)
    replace_file(run_dir / CONFIG, config_text(loaded, plan), attempt)
    replace_file(run_dir / COMMAND, f"{plan.command}\n", attempt)
    said = {
        "run_id": run_id,
        "experiment": loaded.experiment,
        "schema": loaded.schema_name,
        "folder": str(folder),
        "cwd": str(cwd),
        "serves": serves,
        "follows": {**_follows_of_before(loaded, run_dir), **dict(whole_references(loaded.raw))},
        "version": VERSION,
    }
    replace_file(run_dir / RUN_FACTS, json.dumps(said, indent=1) + "\n", attempt)
    replace_file(run_dir / PROVENANCE, provenance_text(loaded, plan), attempt)
    for name in ENDING_FILES:
        replace_file(run_dir / name, None, attempt)


def _follows_of_before(loaded: Loaded, run_dir: Path) -> dict[str, str]:
    """What a run's own configuration, which has no references, does not say any more."""
    is_own = loaded.file.resolve().parent == run_dir.resolve()
    follows: dict[str, str] = read_facts(run_dir).get("follows", {}) if is_own else {}
    return follows


def config_text(loaded: Loaded, plan: Plan) -> str:
    """The configuration as this run has it: what every `auto` became, no references but those to secrets. YAML of both
    versions, for whoever reads it."""
    values = values_without_secrets(loaded, resolved_values(loaded, plan.auto))
    values |= {"resume": None, "resume_step": None}  # of one start, and not of the run
    head = "# What this run was started with. `--config` with this file and trial_name=auto starts the like of it.\n"
    return head + _yaml({"defaults": [{"experiment": loaded.experiment}], **values})


def provenance_text(loaded: Loaded, plan: Plan) -> str:
    """Who said each value that is not the default, what it beat, and why an `auto` became what it is."""
    said: dict[str, Any] = {}
    for setting in plan.changed:
        entry = {"value": setting.value, "from": setting.where}
        if setting.beaten:
            entry["beats"] = [f"{weaker.value} ({weaker.where})" for weaker in setting.beaten]
        said[setting.key] = entry
    for resolved in plan.auto:
        said[resolved.key] = {"value": resolved.value, "from": "auto", "because": resolved.reason}
    return "# Every value that is not the schema's default, and where it came from.\n" + _yaml(
        loaded.redactor.everywhere(said)
    )


def restore_configuration(run_dir: Path, attempt: int) -> bool:
    """That of the attempts before this one, which came to nothing: else the run could not be resumed as it was either.
    That of this one is kept as `config.attempt-K.yaml`. Returns whether it was another."""
    was_another = earlier_version(run_dir / CONFIG, attempt).is_file()
    for name in (CONFIG, PROVENANCE):
        path = run_dir / name
        if earlier_version(path, attempt).is_file():
            write_atomic(path.with_name(f"{path.stem}.attempt-{attempt}{path.suffix}"), path.read_bytes())
            earlier_version(path, attempt).replace(path)
    return was_another


def replace_file(path: Path, text: str | None, attempt: int) -> None:
    """Writes what `attempt` says, or takes away what it does not say any more; what earlier ones said is kept."""
    replace_with_backup(path, text, earlier_version(path, attempt))


def earlier_version(path: Path, attempt: int) -> Path:
    """Where what a file said before `attempt` is kept."""
    return path.with_name(f"{path.stem}.until-attempt-{attempt - 1}{path.suffix}")


def _yaml(tree: Any) -> str:
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))
