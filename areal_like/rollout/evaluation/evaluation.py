"""An evaluation: one pass over some rows, its results and metrics."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from areal_like.data.row_table import hash_text
from areal_like.observe.metrics import ERROR_ROWS
from areal_like.observe.reading import DUE, EVALUATION
from areal_like.rollout.conversation_facts import by_conversation
from areal_like.rollout.decisions import Accept, Drop, Fail, Requeue
from areal_like.rollout.evaluation.evaluated_rows import EvaluatedRows
from areal_like.rollout.groups import Group, Result
from areal_like.rollout.step_metrics import evaluation_metrics, is_score, score_of, spread_metrics, with_reward

KEPT_FACTS = ("env", "metrics")
"""Of an answer, in its saved line where it has them: metrics of a resumed evaluation are made of these too."""
MAX_SHOWN_ROWS = 8
"""Rows whose answers are shown in trackers."""


class Evaluation:
    """One pass over the rows for a weight version."""

    def __init__(self, evaluated: EvaluatedRows, version: int, groups: list[Group]) -> None:
        self.evaluated, self.version = evaluated, version
        self.num_rows = len(groups)
        self.waiting = groups[::-1]
        self.open = len(groups)
        self.failed: list[Group] = []
        self.num_rejected = 0
        self.facts: list[dict[str, Any]] = []
        self.scores: dict[int, list[float]] = {}
        """Of the answers to each row."""
        self.answered: list[tuple[Group, Result]] = []
        """Groups that are done, rejected or failed, and are not saved yet."""
        self.servers: set[str] = set()
        """Those for evaluations alone that it uses."""
        self.saved: list[dict[str, Any]] = []
        """Lines of rows that an earlier start of the run has answered."""
        self.shown: list[Group] = []
        """Copies of a few groups, of the same rows each time."""

    @property
    def num_running(self) -> int:
        return self.open - len(self.waiting)

    def take(self, count: int) -> list[Group]:
        """At most `count` groups."""
        return [self.waiting.pop() for _ in range(min(count, len(self.waiting)))]

    def restore(self, lines: Sequence[dict[str, Any]]) -> None:
        """Takes over the answers of an earlier start. Rows of which one is missing or an error are asked again. Raises
        ValueError if a line is of another row than the data have now."""
        by_row: dict[int, list[dict[str, Any]]] = {}
        for line in lines:
            by_row.setdefault(line["row"], []).append(line)
        groups = {group.row: group for group in self.waiting}
        for row, answers in by_row.items():
            saved, group = answers[0]["row_hash"], groups.get(row)
            if group is None or saved != hash_text(group.row_hash):
                now = "it is not evaluated" if group is None else f"its hash is {hash_text(group.row_hash)}"
                raise ValueError(
                    f"{self.evaluated.key}: the saved answers are of other rows: when row {row} was answered its hash "
                    f"was {saved}, now {now}; start another run (trial_name=), or restore the data"
                )
            if len(answers) == group.n and not any("error" in line for line in answers):
                self.saved += answers
                self.open -= 1
                self.facts += (facts := [fact_of(line) for line in answers])
                self.scores[group.number] = [score_of(fact) for fact in facts]
        kept = {line["row"] for line in self.saved}
        self.waiting = [group for group in self.waiting if group.row not in kept]

    def apply(self, decision: Accept | Drop | Requeue | Fail) -> None:
        group = decision.group
        if not isinstance(decision, Requeue):
            self.answered.append((group, decision.result))
        match decision:
            case Accept(_, result):
                self.open -= 1
                facts = by_conversation(result.facts)
                self.facts += facts
                if scores := [score_of(fact) for fact in with_reward(facts)]:
                    self.scores[group.number] = scores
                if group.number < MAX_SHOWN_ROWS:
                    self.shown.append(replace(group, facts=result.facts, blob=result.blob))
            case Drop():
                self.open -= 1
                self.num_rejected += 1
            case Requeue(_, _, failure):
                group.count_failure(failure)
                self.waiting.append(group)
            case Fail(_, result):
                self.open -= 1
                group.count_failure(result)
                self.failed.append(group)

    @property
    def versions(self) -> tuple[int, int]:
        """The oldest and the newest weights that generated."""
        oldest = min((fact["version_min"] for fact in self.facts), default=self.version)
        newest = max((fact["version_max"] for fact in self.facts), default=self.version)
        return oldest, newest

    @property
    def most_frequent_error(self) -> tuple[str, int]:
        """The error and its number of rows; of equally frequent errors that of the first row. Empty and 0 if no row
        failed."""
        counts = Counter(group.error for group in sorted(self.failed))
        return max(counts.items(), key=lambda item: item[1], default=("", 0))

    def metrics(self, max_failed_share: float) -> dict[str, float]:
        """Scores are NaN where too many rows are missing."""
        oldest, newest = self.versions
        missing = len(self.failed) + self.num_rejected
        scores_R = [self.scores[number] for number in sorted(self.scores)]
        means = result_metrics(self.facts, scores_R, missing > max_failed_share * self.num_rows)
        _, error_rows = self.most_frequent_error
        values = {
            "eval/version_min": oldest,
            "eval/version_max": newest,
            "eval/rows": self.num_rows,
            "eval/failed": len(self.failed),
            "eval/rejected": self.num_rejected,
            ERROR_ROWS: error_rows,
            **means,
        }
        prefix = self.evaluated.prefix
        return {DUE: self.version, **{f"{prefix}{each.removeprefix(EVALUATION)}": values[each] for each in values}}

    def progress(self) -> dict[str, Any]:
        """For the ledger."""
        means = [sum(scores) / len(scores) for scores in self.scores.values()]
        return {
            **self.identity,
            "rows": self.num_rows,
            "done": self.num_rows - self.open,
            "failed": len(self.failed),
            "score": sum(means) / len(means) if means else None,
        }

    @property
    def identity(self) -> dict[str, Any]:
        """For the ledger."""
        named = {"benchmark": self.evaluated.name} if self.evaluated.name else {}
        return {"version": self.version, **named}

    def record(self) -> dict[str, Any]:
        """For the ledger."""
        return {
            **self.identity,
            "rows": self.num_rows,
            "failed": len(self.failed),
            "rejected": self.num_rejected,
            "answers": len(self.facts),
            "versions": list(self.versions),
            **({"servers": sorted(self.servers)} if self.servers else {}),
        }

    @property
    def failure(self) -> str:
        """The reason why the run cannot continue after it."""
        if len(self.failed) < self.num_rows:
            return ""
        return (
            f"{self.evaluated.key}: not one of {self.num_rows} rows could be evaluated for version {self.version}; the "
            f"first error was: {self.failed[0].error}"
        )


def result_metrics(
    facts: list[dict[str, Any]], scores_R: Sequence[Sequence[float]], too_many_missing: bool
) -> dict[str, float]:
    """Of answers: scores are NaN where there are none, and where too many rows are missing."""
    means = evaluation_metrics(facts) if facts else {"eval/score": math.nan, "eval/samples": 0.0}
    if scores_R:
        means |= spread_metrics(scores_R)
    if too_many_missing:
        means = {name: math.nan if is_score(name) else value for name, value in means.items()}
    return means


def fact_of(line: dict[str, Any]) -> dict[str, Any]:
    """What metrics need of a saved answer."""
    oldest, newest = line["weights"]
    facts = {name: line[name] for name in ("reward", "rewards", "finish", *KEPT_FACTS) if name in line}
    return {**facts, "generated": line["tokens"], "version_min": oldest, "version_max": newest}
