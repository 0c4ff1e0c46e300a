"""`eval`: the scores of a run from its saved answers, a comparison with another run, or the evaluation of a model."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.checkpoint_files import complete_checkpoints, step_of
from areal_like.process.exit_codes import DONE
from areal_like.process.run import CONFIG
from areal_like.process.run_links import CHECKPOINTS
from launcher.arguments import Arguments
from launcher.runs.registry import find_runs
from launcher.runs.resume import DEFAULT_ROOT, ROOT_OVERRIDES, find_run
from launcher.runs.score_tables import comparison, evaluated_names, evaluation_folder, score_table

STEP, WITH = "step=", "with="
ALONE = "total_train_steps=0"
"""The model is evaluated and not trained."""
MODEL_FILE = "config.json"
PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z/][\w./-]*", re.ASCII | re.IGNORECASE)


def show_evaluation(name: str, words: Sequence[str]) -> int:
    """Prints a table; returns the exit code."""
    unknown = [word for word in words if not word.startswith((STEP, WITH, *ROOT_OVERRIDES))]
    if unknown:
        message = "eval RUN takes only with=RUN and step=N; --config FILE evaluates a model"
        raise ConfigError([Problem(word, message, "command line") for word in unknown])
    step = next((word.removeprefix(STEP) for word in words if word.startswith(STEP)), None)
    other = next((word.removeprefix(WITH) for word in words if word.startswith(WITH)), None)
    roots = [word for word in words if word.startswith(ROOT_OVERRIDES)]
    directory = find_run(name, roots, "eval")
    first, names = evaluation_folder(directory, step), evaluated_names(directory)
    if other is None:
        print("\n".join(score_table(first, names)))
        return DONE
    second = evaluation_folder(find_run(other, roots, "eval"), step)
    print("\n".join(comparison(first, second, names)))
    return DONE


def model_evaluation(arguments: Arguments) -> Arguments:
    """The arguments of a run that only evaluates: the model of the configuration, or that which `eval` names, a folder,
    a name on the Hub or a run, whose newest checkpoint is meant, or that of `step=N`."""
    overrides = [word for word in arguments.overrides if not word.startswith(STEP)]
    steps = [word.removeprefix(STEP) for word in arguments.overrides if word.startswith(STEP)]
    if arguments.operand is not None:
        overrides.append(f"actor.path={_word(_model(arguments.operand, steps[-1] if steps else None, overrides))}")
    elif steps:
        raise ConfigError([Problem(f"{STEP}{steps[-1]}", "names the checkpoint of a run: eval RUN --config FILE")])
    return replace(arguments, overrides=[*overrides, ALONE])


def _word(path: str) -> str:
    """As the value of an override: quoted where it would not be read as this text."""
    if PLAIN.fullmatch(path):
        return path
    from launcher.sweep.hydra_session import quoted

    return quoted(path)


def _model(name: str, step: str | None, overrides: Sequence[str]) -> str:
    folder = Path(name).expanduser()
    if (folder / MODEL_FILE).is_file() and step is None:
        return str(folder.resolve())
    roots = [word.partition("=")[2] for word in overrides if word.startswith(ROOT_OVERRIDES)]
    runs = find_runs(name, Path(roots[-1] if roots else DEFAULT_ROOT).expanduser().resolve(), Path.cwd())
    if len(runs) != 1 and step is None and not (folder / CONFIG).is_file():
        return name
    run = find_run(name, [word for word in overrides if word.startswith(ROOT_OVERRIDES)], "eval")
    complete = {str(step_of(path.name)): path for _, path in complete_checkpoints(run / CHECKPOINTS)}
    if step is not None and step not in complete:
        raise ConfigError([Problem(f"{STEP}{step}", f"{run} has no complete checkpoint of this step")])
    if not complete:
        raise ConfigError([Problem("eval", f"{run} has no complete checkpoint to evaluate")])
    return str(complete[step] if step is not None else list(complete.values())[-1])
