"""Tables of the scores in saved answers, and of the comparison of two evaluations of the same rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.problems import ConfigError, Problem
from areal_like.observe.evaluation_statistics import best_of, bootstrap, compare, pass_sizes
from areal_like.process.checkpoint_files import folder_name, step_of
from areal_like.process.run import open_run
from areal_like.rollout.answer_files import VALID, answers_folder, read_answers

PARTIAL = ".partial"


class Answers(NamedTuple):
    """`scores`: (row, hash of the row) -> scores of its answers; `num_errors` are answers and rows without one."""

    scores: dict[tuple[int, str], list[float]]
    num_errors: int


def evaluation_folder(directory: Path, step: str | None) -> Path:
    """The folder with the answers of one step, by default of the last one."""
    root, steps = answers_folder(open_run(directory, own_class=False)), evaluated_steps(directory)
    if not steps:
        raise ConfigError([Problem("eval", f"{root} has no answers: no evaluation of this run is complete")])
    if step is None:
        return root / folder_name(steps[-1])
    if not step.isdecimal() or int(step) not in steps:
        known = ", ".join(map(str, steps))
        raise ConfigError([Problem(f"step={step}", f"there is no evaluation of this step; there are: {known}")])
    return root / folder_name(int(step))


def evaluated_steps(directory: Path) -> list[int]:
    """Those with answers of a complete evaluation."""
    folders = answers_folder(open_run(directory, own_class=False)).glob("step_*")
    return sorted(step for each in folders if (step := step_of(each.name)) is not None and files_of(each))


def evaluated_names(directory: Path) -> list[str]:
    """Of the files of a run, in the order of its configuration."""
    config = open_run(directory, own_class=False).config
    return [VALID, *(each.name for each in config.evaluator.benchmarks)]


def files_of(folder: Path, names: Sequence[str] = ()) -> dict[str, Path]:
    """Name of what was evaluated -> file of its answers, those of `names` first."""
    found = {path.stem: path for path in sorted(folder.glob("*.jsonl")) if not path.stem.endswith(PARTIAL)}
    return {name: found[name] for name in (*names, *found) if name in found}


def answers_of(path: Path) -> Answers:
    scores: dict[tuple[int, str], list[float]] = {}
    num_errors = 0
    for line in read_answers(path):
        if "score" in line:
            scores.setdefault((line["row"], line["row_hash"]), []).append(line["score"])
        else:
            num_errors += 1
    return Answers(scores, num_errors)


def score_table(folder: Path, names: Sequence[str] = ()) -> list[str]:
    """In the order of `names`. Errors stand beside the scores: they are no wrong answers."""
    rows = [("", "rows", "errors", "score", "95% band", "best of its answers")]
    for name, path in files_of(folder, names).items():
        answers = answers_of(path)
        rows.append((name, str(len(answers.scores)), str(answers.num_errors), *_score_cells(answers)))
    return [str(folder), "", *_columns(rows)]


def _score_cells(answers: Answers) -> tuple[str, str, str]:
    if not answers.scores:
        return "none", "", ""
    means = [mean(scores) for scores in answers.scores.values()]
    low, high = bootstrap(means)
    sizes = pass_sizes(max(map(len, answers.scores.values())))
    best = (f"pass@{k} {mean([best_of(s, k) for s in answers.scores.values() if len(s) >= k]):.3f}" for k in sizes)
    return f"{mean(means):.3f}", f"[{low:.3f}, {high:.3f}]", ", ".join(best)


def comparison(first: Path, second: Path, names: Sequence[str] = ()) -> list[str]:
    """Of what both have evaluated, in the order of `names`, over the rows that both have answered."""
    files, others = files_of(first, names), files_of(second)
    shared = [name for name in files if name in others]
    if not shared:
        message = f"{first} has {', '.join(files)}, and {second} has {', '.join(others)}: nothing in common"
        raise ConfigError([Problem("with", message)])
    rows: list[tuple[str, ...]] = [("", "rows", "first", "second", "difference", "95% band", "real from", "verdict")]
    notes: list[str] = []
    for name in shared:
        row, note = _compared(name, answers_of(files[name]), answers_of(others[name]))
        rows.append(row)
        notes += note
    return [f"first   {first}", f"second  {second}", "", *_columns(rows), *notes]


def _compared(name: str, first: Answers, second: Answers) -> tuple[tuple[str, ...], list[str]]:
    rows = sorted(first.scores.keys() & second.scores.keys())
    alone = len(first.scores.keys() ^ second.scores.keys())
    notes = [f"{name}: {alone} rows are in one of the two only, or failed there, and are left out"] if alone else []
    if not rows:
        return (name, "0", *[""] * 5, "no row in common"), notes
    found = compare([mean(first.scores[row]) for row in rows], [mean(second.scores[row]) for row in rows])
    band = f"[{found.low:+.3f}, {found.high:+.3f}]"
    cells = (
        f"{found.first:.3f}",
        f"{found.second:.3f}",
        f"{found.difference:+.3f}",
        band,
        f"{found.smallest_real:.3f}",
    )
    return (name, str(found.rows), *cells, found.verdict), notes


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _columns(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
