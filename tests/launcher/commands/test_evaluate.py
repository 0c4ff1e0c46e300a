"""`eval`: tables and comparisons from saved answers, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from launcher.commands.evaluate import comparison, score_table
from tests.support.planning import plan_of


def saved(folder: Path, **answers: Sequence[Sequence[float | None]]) -> Path:
    """A folder of answers: name -> the scores of each row's answers; None is an error."""
    folder.mkdir(parents=True)
    for name, rows in answers.items():
        lines: list[dict[str, Any]] = []
        for row, scores in enumerate(rows):
            for sample, score in enumerate(scores):
                fact = {"error": "no"} if score is None else {"score": score}
                lines.append({"row": row, "sample": sample, "row_hash": f"h{row}", **fact})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def cells(lines: list[str], name: str) -> list[str]:
    return next(line.split() for line in lines if line.startswith(f"{name} "))


def test_a_table_has_a_line_for_each_evaluation_and_keeps_errors_apart(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", sums=[[1.0, 0.0], [1.0, 1.0], [None]], valid=[[0.0]])
    (folder / "sums.partial.jsonl").write_text("{}\n")
    lines = score_table(folder)
    assert cells(lines, "sums")[:4] == ["sums", "2", "1", "0.750"] and "pass@2 1.000" in "\n".join(lines)
    assert cells(lines, "valid")[:4] == ["valid", "1", "0", "0.000"]
    assert len(lines) == 5


def test_two_evaluations_are_compared_on_the_rows_that_both_answered(tmp_path: Path) -> None:
    first = saved(tmp_path / "a", sums=[[0.0]] * 20 + [[None]], other=[[1.0]])
    second = saved(tmp_path / "b", sums=[[1.0]] * 15 + [[0.0]] * 5 + [[1.0]])
    lines = comparison(first, second)
    found = cells(lines, "sums")
    assert found[:5] == ["sums", "20", "0.000", "0.750", "+0.750"]
    assert "the second is better" in "\n".join(lines) and "other" not in "\n".join(lines)
    assert lines[-1] == "sums: 1 rows are in one of the two only, or failed there, and are left out"
    assert "no real difference" in "\n".join(comparison(first, first))


def test_evaluations_without_anything_in_common_are_refused(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a", sums=[[1.0]]), saved(tmp_path / "b", other=[[1.0]])
    with pytest.raises(ConfigError, match="nothing in common"):
        comparison(first, second)
    third = saved(tmp_path / "c", sums=[[None]])
    assert "no row in common" in "\n".join(comparison(first, third))


def refusals(experiment: str, *overrides: str) -> dict[str, str]:
    return {problem.key: problem.message for problem in plan_of(experiment, *overrides).cannot_start}


def test_without_steps_there_must_be_an_evaluation_of_answers() -> None:
    assert refusals("grpo", "total_train_steps=0") == {}
    assert "nothing is evaluated" in refusals("grpo", "total_train_steps=0", "valid_dataset=null")["total_train_steps"]
    benchmark = "evaluator.benchmarks=[{name: a, path: addition, freq_steps: 1}]"
    assert refusals("grpo", "total_train_steps=0", "valid_dataset=null", benchmark) == {}
    assert "no answers are sampled here" in refusals("sft", "total_train_steps=0")["total_train_steps"]
