"""The learning curves and their table. `make night` makes new curves of every algorithm with the real command."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.make import results_page
from docs.make.results_page import BEGIN, END, RESULTS, read_results, rise, table
from tests.bench import algorithm_curves as curves
from tests.bench.algorithm_curves import CASES
from tests.bench.learning_curves import keep, rises

CURVE = [[0, 0.42], [10, 0.5], [20, 0.55], [30, 0.7], [40, 0.6]]


def run_of(seed: int, curve: list[list[float]]) -> dict[str, Any]:
    return {"seed": seed, "date": "2026-01-02", "commit": "abc", "seconds": 1, "curve": curve}


def test_a_rise_is_from_the_first_to_the_last_score_not_to_the_best() -> None:
    assert rise(CURVE) == pytest.approx(0.18) and rises(CURVE)
    assert not rises([*CURVE, [50, 0.56]])


def test_the_table_shows_the_last_measured_score_of_each_part() -> None:
    assert [results_page.at(CURVE, share) for share in (0.25, 0.5, 0.74, 1.0)] == [0.5, 0.55, 0.55, 0.6]
    lines = table([{"title": "GRPO", "command": "python x", "runs": [run_of(1, CURVE)]}]).splitlines()
    assert lines[2] == "| GRPO | `python x` | 1 | 40 | 0.42 | 0.50 | 0.55 | 0.70 | 0.60 | +0.18 |"
    assert len({line.count("|") for line in lines}) == 1


def test_scores_of_several_seeds_are_shown_as_mean_and_range() -> None:
    other = [[0, 0.42], [10, 0.5], [20, 0.65], [30, 0.7], [40, 0.9]]
    line = table([{"title": "GRPO", "command": "x", "runs": [run_of(1, CURVE), run_of(2, other)]}]).splitlines()[-1]
    assert line == "| GRPO | `x` | 2 | 40 | 0.42 | 0.50 | 0.60 (0.55-0.65) | 0.70 | 0.75 (0.60-0.90) | +0.33 |"


def test_a_page_keeps_everything_except_its_table(tmp_path) -> None:
    keep(tmp_path / "grpo.json", CASES["grpo"], run_of(1, CURVE))
    once = results_page.render(f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n", tmp_path)
    assert once.startswith(f"# Title\n\n{BEGIN}\n") and once.endswith(f"{END}\n\nmore\n") and "old" not in once
    assert "| GRPO |" in once and results_page.render(once, tmp_path) == once


def test_curves_of_other_seeds_are_kept_and_a_small_rise_is_reported(tmp_path, monkeypatch, capsys) -> None:
    output, done = tmp_path / "new", []

    def run(name: str, seed: int, folder: Path) -> dict[str, Any]:
        done.append((name, seed))
        return run_of(seed, CURVE[:2] if name == "rloo" else CURVE)

    monkeypatch.setattr(curves, "run", run)
    for words, code in ((("grpo", "--seeds", "3", "1"), 0), (("grpo", "rloo", "--seeds", "1", "2"), 1)):
        monkeypatch.setattr(sys, "argv", ["x", *words, "--output", str(output)])
        assert curves.main() == code
    assert done == [("grpo", 3), ("grpo", 1), ("grpo", 1), ("rloo", 1), ("grpo", 2), ("rloo", 2)]
    grpo, rloo = read_results(output)
    assert ([run["seed"] for run in grpo["runs"]], [run["seed"] for run in rloo["runs"]]) == ([1, 2, 3], [1, 2])
    printed = capsys.readouterr()
    assert "did not rise by 0.15: python -m launcher --config grpo.yaml algorithm=rloo seed=1, " in printed.err
    assert "| GRPO |" in printed.out and "| RLOO |" in printed.out


def test_curves_of_an_older_command_are_dropped(tmp_path) -> None:
    file = tmp_path / "dapo.json"
    for case, seed in ((CASES["grpo"], 1), (CASES["dapo"], 2)):
        keep(file, case, run_of(seed, CURVE))
    assert [run["seed"] for run in json.loads(file.read_text())["runs"]] == [2]


def test_an_unknown_name_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "grppo"])
    with pytest.raises(SystemExit) as ended:
        curves.main()
    assert ended.value.code == 2 and "dr_grpo" in capsys.readouterr().err


def test_the_kept_curves_are_of_every_algorithm_with_its_current_settings() -> None:
    assert [file.stem for file in sorted(RESULTS.glob("*.json"))] == list(CASES)
    for result, case in zip(read_results(RESULTS), CASES.values(), strict=True):
        assert (result["title"], result["command"]) == (case.title, case.command)
        assert all(run["commit"] and run["date"] and rises(run["curve"]) for run in result["runs"])


def test_a_title_is_the_name_in_the_comment_of_the_algorithms_file() -> None:
    titles = {name: case.title for name, case in CASES.items()}
    assert titles.items() >= {"dr_grpo": "Dr. GRPO", "reinforce": "REINFORCE++", "dapo": "DAPO"}.items()
    assert all(title.replace(" ", "").replace(".", "").replace("+", "").isalpha() for title in titles.values())
