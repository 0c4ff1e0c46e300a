"""The scores of evaluations once more, where `evaluator.fileroot` puts them."""

from pathlib import Path

from areal_like.observe.reading import EVALUATION, Line, dump_lines, read_lines
from areal_like.process import atomic_file

FILE = "evaluations.jsonl"


def has_scores(line: Line) -> bool:
    return any(name.startswith(EVALUATION) for name in line)


def write_evaluations(joined: Path, folder: Path) -> None:
    """All lines of a run's metrics that have scores, as they are now: a recovery has cut some."""
    scores = filter(has_scores, read_lines(joined))
    atomic_file.write_atomic(folder / FILE, dump_lines(scores))
