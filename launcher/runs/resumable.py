"""Messages about resuming: what a stop will write, where a stopped run can resume, why a run cannot be resumed."""

from pathlib import Path
from typing import Any

from areal_like.process.checkpoint_files import resume_problem
from areal_like.process.run import CONFIG, Run
from areal_like.process.run_links import missing_link_targets
from launcher.runs.checkpoints import complete_steps, newest_resumable, step_folder

DISABLED = "disabled"
EVALUATION_STOPS = "stopping; press Ctrl-C again to end at once"


def stop_message(config: Any) -> str:
    """The message when a run is asked to stop."""
    what = "stopping when the step is done, with a checkpoint"
    if config.bench:
        what = "stopping when the step is done; a benchmark (bench=true) writes no checkpoint"
    elif config.recover.mode == DISABLED:
        what = "stopping when the step is done and its model saved; recover.mode=disabled saves nothing to resume from"
    return f"{what}; press Ctrl-C again to end at once"


def evaluation_point_text(run: Run) -> str:
    """How a stopped evaluation goes on."""
    return f"the answers so far are kept; python -m launcher eval resume={run.directory} goes on with them"


def resume_point_text(run: Run) -> str:
    """Where a stopped run can resume."""
    newest = newest_resumable(run.directory)
    if newest is not None:
        return f"the newest checkpoint is of step {newest[0]}"
    return why_not_resumable(run.directory, run.config.recover.mode, run.config.bench)


def why_not_resumable(run_dir: Path, mode: str | None = None, bench: bool | None = None) -> str:
    """Why the run has no resumable checkpoint, and the key that changes it. `mode` (recover.mode) and `bench` default
    to the run's own configuration."""
    if lost := missing_link_targets(run_dir):
        return lost
    own = run_config_values(run_dir) if mode is None else {}
    mode = mode if mode is not None else (own.get("recover") or {}).get("mode")
    if own.get("bench") if bench is None else bench:
        return "there is no checkpoint: a benchmark (bench=true) writes none"
    steps = complete_steps(run_dir)
    if mode == DISABLED:
        if not steps:
            return "there is no checkpoint, because recover.mode was disabled; recover.mode=auto saves one"
        state = f"the checkpoint of step {steps[-1]} contains only the model, because recover.mode was disabled"
        return f"{state}; recover.mode=auto saves what a run needs to resume"
    if not steps:
        return "there is no checkpoint to resume from"
    return f"there is no checkpoint to resume from: {resume_problem(step_folder(run_dir, steps[-1]))}"


def run_config_values(run_dir: Path) -> dict[str, Any]:
    """The run's own configuration; empty where it cannot be read."""
    return recorded_values(run_dir / CONFIG)


def recorded_values(file: Path) -> dict[str, Any]:
    """The values of a YAML file of a run, which anybody may have edited; empty where it cannot be read."""
    from areal_like.config.sources.yaml_file import read_yaml  # brings yaml

    root = read_yaml(file, file.name).root
    return {} if root is None else root.plain()
