"""`eval`: the scores of a run from its saved answers, a comparison with another run, or the evaluation of a model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from areal_like.config.experiment import GRPOConfig
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.models import BUILT_IN, unknown_model
from areal_like.process.checkpoint_files import complete_checkpoints, step_of
from areal_like.process.exit_codes import DONE
from areal_like.process.run import CONFIG
from areal_like.process.run_links import CHECKPOINTS
from areal_like.rollout.evaluation.answer_folders import evaluated_names, saved_evaluation
from launcher.arguments import Arguments
from launcher.runs.named_run import STEP, find_run, last_value, name_and_step, runs_root, unknown_words
from launcher.runs.registry import find_runs
from launcher.runs.resume import override_value
from launcher.runs.score_tables import comparison, score_table

WITH = "with="
ALONE = "total_train_steps=0"
"""The model is evaluated and not trained."""
MODEL_FILE = "config.json"


def show_evaluation(name: str, words: Sequence[str]) -> int:
    """Prints a table; returns the exit code. `step=N` is of this run, `with=RUN@N` of the other one."""
    known = "eval RUN takes only step=N, and with=RUN or with=RUN@N; --config FILE evaluates models"
    if unknown := unknown_words(words, (STEP, WITH), known):
        raise ConfigError(unknown)
    step, other = last_value(words, STEP), last_value(words, WITH)
    if name.startswith(BUILT_IN):
        why = unknown_model(name) or "is a model, to be evaluated on the benchmarks of --config FILE"
        raise ConfigError([Problem(f"eval {name}", why, "command line")])
    directory = find_run(name, words, "eval")
    first, names = saved_evaluation(directory, step), evaluated_names(directory)
    if other is None:
        print("\n".join(score_table(first, names)))
        return DONE
    run, other_step = name_and_step(other, words)
    second = saved_evaluation(find_run(run, words, "with"), other_step, f"{WITH}{other}")
    print("\n".join(comparison(first, second, names)))
    return DONE


def check_answers(command: str, loaded: Loaded) -> None:
    """Raises ConfigError for an experiment that generates none."""
    if not isinstance(loaded.config, GRPOConfig):
        raise ConfigError([Problem(command, f"is for experiments that generate, not for {loaded.experiment}")])


def model_evaluation(arguments: Arguments) -> Arguments:
    """The arguments of a run that only evaluates: the model of the configuration, or that which `eval` names, a folder,
    a name on the Hub or a run, whose newest checkpoint is meant, or that of `step=N`."""
    overrides = [word for word in arguments.overrides if not word.startswith(STEP)]
    step = last_value(arguments.overrides, STEP)
    if arguments.operand is not None:
        overrides.append(f"actor.path={override_value(_model(arguments.operand, step, overrides))}")
    elif step is not None:
        raise ConfigError([Problem(f"{STEP}{step}", "names the checkpoint of a run: eval RUN --config FILE")])
    return replace(arguments, overrides=[*overrides, ALONE])


def _model(name: str, step: str | None, overrides: Sequence[str]) -> str:
    folder = Path(name).expanduser()
    if (folder / MODEL_FILE).is_file() and step is None:
        return str(folder.resolve())
    runs = find_runs(name, runs_root(overrides), Path.cwd())
    if len(runs) != 1 and step is None and not (folder / CONFIG).is_file():
        return name
    run = find_run(name, overrides, "eval")
    complete = {str(step_of(path.name)): path for _, path in complete_checkpoints(run / CHECKPOINTS)}
    if step is not None and step not in complete:
        raise ConfigError([Problem(f"{STEP}{step}", f"{run} has no complete checkpoint of this step")])
    if not complete:
        raise ConfigError([Problem("eval", f"{run} has no complete checkpoint to evaluate")])
    return str(complete[step] if step is not None else list(complete.values())[-1])
