"""Where the answers of evaluations are: `evaluations/step_000020/NAME.jsonl`, and `NAME.partial.jsonl` until the
evaluation is complete."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.checkpoint_files import folder_name, step_of
from areal_like.process.run import Run, open_run
from areal_like.process.run_links import EVALUATIONS

VALID = "valid"
"""Name of the file of `valid_dataset`."""
SUFFIX, PARTIAL = ".jsonl", ".partial.jsonl"
IDENTITY = frozenset(("row", "row_hash"))
"""What each line has: which row it answers."""


def answers_folder(run: Run) -> Path:
    """With `evaluator.save.disk_path`, which runs may share, one for each run in it."""
    config = run.config
    path = config.evaluator.save.disk_path
    if path is None:
        return run.directory / EVALUATIONS
    return run.cwd / Path(path).expanduser() / Path(config.experiment_name, config.trial_name)


def answers_path(folder: Path, step: int, name: str) -> Path:
    return folder / folder_name(step) / f"{name or VALID}{SUFFIX}"


def read_answers(path: Path) -> list[dict[str, Any]]:
    """The complete lines; none if there is no file. Raises ConfigError for one that is no answer."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [_answer(path, number, line) for number, line in enumerate(lines, 1)]


def _answer(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(line)
    except ValueError as fault:
        why = f"is not a line of JSON ({fault})"
    else:
        if isinstance(answer, dict) and answer.keys() >= IDENTITY:
            return answer
        why = f"is not an answer: it has no {' and '.join(sorted(IDENTITY))}"
    raise ConfigError([Problem(f"{path}:{number}", f"{why}; the file was changed: restore it, or remove this line")])


def answer_bytes(run: Run) -> int:
    """Of all answers that are written; grows with each."""
    sizes = 0
    for path in answers_folder(run).glob(f"step_*/*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # complete meanwhile
            sizes += path.stat().st_size
    return sizes


def evaluation_folder(directory: Path, step: str | None, word: str = "") -> Path:
    """The folder with the answers of one step, by default of the last one. `word`: how the user named it, for
    messages."""
    root, steps = answers_folder(open_run(directory, own_class=False)), evaluated_steps(directory)
    if not steps:
        raise ConfigError([Problem(word or "eval", f"{root} has no answers: no evaluation of this run is complete")])
    if step is None:
        return root / folder_name(steps[-1])
    if not step.isdecimal() or int(step) not in steps:
        known = ", ".join(map(str, steps))
        raise ConfigError(
            [Problem(word or f"step={step}", f"there is no evaluation of this step in {root}; there are: {known}")]
        )
    return root / folder_name(int(step))


class SavedEvaluation(NamedTuple):
    """The answers of one step. Above `max_failed_share` of the rows without a result there is no score."""

    folder: Path
    max_failed_share: float
    config: Any = None
    """Of its run."""


def saved_evaluation(directory: Path, step: str | None, word: str = "") -> SavedEvaluation:
    """Of one step of a run, by default of the last one."""
    config = open_run(directory, own_class=False).config
    return SavedEvaluation(evaluation_folder(directory, step, word), config.evaluator.max_failed_share, config)


def evaluated_steps(directory: Path) -> list[int]:
    """Those with answers of a complete evaluation."""
    folders = answers_folder(open_run(directory, own_class=False)).glob("step_*")
    return sorted(step for each in folders if (step := step_of(each.name)) is not None and files_of(each))


def evaluated_names(directory: Path) -> list[str]:
    """Of the files of a run, in the order of its configuration."""
    config = open_run(directory, own_class=False).config
    return [VALID, *(each.name for each in config.evaluator.benchmarks)]


def files_of(folder: Path, names: Sequence[str] = ()) -> dict[str, Path]:
    """Name of what was evaluated -> file of its answers, those of `names` first. Complete ones alone."""
    found = {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}")) if not path.name.endswith(PARTIAL)}
    return {name: found[name] for name in (*names, *found) if name in found}
