"""Tables of the scores in saved answers, and of the comparison of two evaluations of the same rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from areal_like.config.problems import ConfigError, Problem
from areal_like.observe.evaluation_statistics import best_of, bootstrap, compare, pass_sizes
from areal_like.observe.text import columns
from areal_like.rollout.evaluation.answer_folders import files_of, read_answers


class Answers(NamedTuple):
    """`scores`: (row, hash of the row) -> scores of its answers; `num_errors` are answers and rows without one."""

    scores: dict[tuple[int, str], list[float]]
    num_errors: int


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
    """In the order of `names`. Errors stand beside the scores: they are no wrong answers. Without a row of several
    answers there is no best one of them."""
    rows: list[tuple[str, ...]] = [("", "rows", "errors", "score", "95% band", "best of its answers")]
    for name, path in files_of(folder, names).items():
        answers = answers_of(path)
        rows.append((name, str(len(answers.scores)), str(answers.num_errors), *_score_cells(answers)))
    shown = rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]
    return [str(folder), "", *columns(shown)]


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
    return [f"first   {first}", f"second  {second}", "", *columns(rows), *notes]


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
