"""Tables of the scores in saved answers, and of the comparison of two evaluations of the same rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from areal_like.config.problems import ConfigError, Problem
from areal_like.observe.evaluation_statistics import best_of, bootstrap, compare, pass_sizes
from areal_like.observe.text import columns
from areal_like.rollout.evaluation.answer_folders import SavedEvaluation, files_of, read_answers
from launcher.runs.evaluation_settings import differences


class Answers(NamedTuple):
    """`scores`: (row, hash of the row) -> scores of its answers; `num_errors` are answers and rows without one.
    `num_missing` of `num_rows` rows failed or were rejected."""

    scores: dict[tuple[int, str], list[float]]
    num_errors: int
    num_rows: int
    num_missing: int
    max_failed_share: float

    @property
    def has_score(self) -> bool:
        """As in the metrics of the run."""
        return bool(self.scores) and self.num_missing <= self.max_failed_share * self.num_rows

    def why_no_score(self, name: str) -> str:
        allowed = f"evaluator.max_failed_share allows {100 * self.max_failed_share:.3g}%"
        return (
            f"{name}: no score, as {self.num_missing} of {self.num_rows} rows failed or were rejected by the workflow "
            f"({100 * self.num_missing / self.num_rows:.3g}%, {allowed})"
        )


def answers_of(path: Path, max_failed_share: float) -> Answers:
    scores: dict[tuple[int, str], list[float]] = {}
    rows: set[int] = set()
    num_errors = num_missing = 0
    for line in read_answers(path):
        rows.add(line["row"])
        if "score" in line:
            scores.setdefault((line["row"], line["row_hash"]), []).append(line["score"])
        else:
            num_errors += 1
            num_missing += "reward" not in line  # an answer whose reward failed has it as null
    return Answers(scores, num_errors, len(rows), num_missing, max_failed_share)


def score_table(saved: SavedEvaluation, names: Sequence[str] = ()) -> list[str]:
    """In the order of `names`. Errors stand beside the scores: they are no wrong answers. Without a row of several
    answers there is no best one of them."""
    rows: list[tuple[str, ...]] = [("", "rows", "errors", "score", "95% band", "best of its answers")]
    notes: list[str] = []
    for name, path in files_of(saved.folder, names).items():
        answers = answers_of(path, saved.max_failed_share)
        rows.append((name, str(len(answers.scores)), str(answers.num_errors), *_score_cells(answers)))
        if answers.num_missing and not answers.has_score:
            notes.append(answers.why_no_score(name))
    shown = rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]
    return [str(saved.folder), "", *columns(shown), *notes]


def _score_cells(answers: Answers) -> tuple[str, str, str]:
    if not answers.has_score:
        return "none", "", ""
    means = [mean(scores) for scores in answers.scores.values()]
    low, high = bootstrap(means)
    sizes = pass_sizes(max(map(len, answers.scores.values())))
    best = (f"pass@{k} {mean([best_of(s, k) for s in answers.scores.values() if len(s) >= k]):.3f}" for k in sizes)
    return f"{mean(means):.3f}", f"[{low:.3f}, {high:.3f}]", ", ".join(best)


def comparison(first: SavedEvaluation, second: SavedEvaluation, names: Sequence[str] = ()) -> list[str]:
    """Of what both have evaluated, in the order of `names`, over the rows that both have answered."""
    files, others = files_of(first.folder, names), files_of(second.folder)
    shared = [name for name in files if name in others]
    if not shared:
        has = f"{first.folder} has {', '.join(files)}, and {second.folder} has {', '.join(others)}"
        raise ConfigError([Problem("with", f"{has}: nothing in common")])
    rows: list[tuple[str, ...]] = [("", "rows", "first", "second", "difference", "95% band", "real from", "verdict")]
    notes: list[str] = []
    for name in shared:
        row, note = _compared(
            name,
            answers_of(files[name], first.max_failed_share),
            answers_of(others[name], second.max_failed_share),
        )
        rows.append(row)
        notes += [*note, *differences(name, first.config, second.config)]
    return [f"first   {first.folder}", f"second  {second.folder}", "", *columns(rows), *notes]


def _compared(name: str, first: Answers, second: Answers) -> tuple[tuple[str, ...], list[str]]:
    """Without a verdict where a side has no score: the rows that it has may be its easy ones."""
    rows = sorted(first.scores.keys() & second.scores.keys())
    sides = {"the first": first, "the second": second}
    if without := [side for side, answers in sides.items() if not answers.has_score]:
        verdict = f"{without[0]} has no score" if len(without) == 1 else "neither has a score"
        notes = [f"{side}: {sides[side].why_no_score(name)}" for side in without if sides[side].num_missing]
        return (name, str(len(rows)), *[""] * 5, verdict), notes
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
