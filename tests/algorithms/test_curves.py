"""The table of learning curves, and (slow) that every algorithm learns with the real command."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import algorithm_curves as curves
from tests.bench.algorithm_curves import BEGIN, CASES, END

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
CURVE = [[0, 0.42], [10, 0.5], [20, 0.55], [30, 0.7], [40, 0.6]]


def row(curve: list[list[float]], name: str = "grpo") -> dict[str, Any]:
    return {**curves.judged(curve), "command": CASES[name].command, "wall_s": 1.0, "load_average": 1.0}


def test_a_rise_is_from_the_first_to_the_last_score_not_to_the_best() -> None:
    actual = curves.judged(CURVE)
    assert (actual["start"], actual["end"]) == (0.42, 0.6)
    assert actual["rise"] == pytest.approx(0.18) and actual["learnt"]
    assert not curves.judged([*CURVE, [50, 0.56]])["learnt"]


def test_the_table_shows_the_last_measured_score() -> None:
    assert [curves.at(CURVE, share) for share in (0.25, 0.5, 0.74, 1.0)] == [0.5, 0.55, 0.55, 0.6]
    lines = curves.table({"ppo": row(CURVE, "ppo"), "grpo": row(CURVE)}).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["GRPO", "PPO"]
    assert lines[2].endswith("| 40 | 0.42 | 0.50 | 0.55 | 0.70 | 0.60 | +0.18 |")
    assert len({line.count("|") for line in lines}) == 1


def test_a_page_keeps_everything_except_measured_rows_of_its_table() -> None:
    text = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    once = curves.page(text, {"grpo": row(CURVE)})
    assert once.startswith(f"# Title\n\n{BEGIN}\n") and once.endswith(f"{END}\n\nmore\n") and "old" not in once
    assert curves.page(once, {"grpo": row(CURVE)}) == once
    both = curves.page(once, {"gspo": row(CURVE, "gspo")})
    assert both == curves.page(text, {name: row(CURVE, name) for name in ("grpo", "gspo")})
    with pytest.raises(SystemExit, match="the page has no"):
        curves.page("# Title\n", {})


def test_results_of_other_algorithms_are_kept_and_a_small_rise_is_reported(tmp_path, monkeypatch, capsys) -> None:
    output, docs = tmp_path / "new" / "algorithms.json", tmp_path / "results.md"
    docs.write_text(f"{BEGIN}\n{END}\n")
    actual = {"grpo": row(CURVE), "rloo": row(CURVE[:2], "rloo")}
    monkeypatch.setattr(curves, "run", lambda name, folder: actual[name])
    for name, code in (("grpo", 0), ("rloo", 1)):
        monkeypatch.setattr(sys, "argv", ["x", name, "--output", str(output), "--docs", str(docs)])
        assert curves.main() == code
    result = json.loads(output.read_text())
    assert list(result["runs"]) == ["grpo", "rloo"] and result["least_rise"] == 0.15
    assert "| GRPO |" in docs.read_text() and "| RLOO |" in docs.read_text()
    assert "did not rise by 0.15: RLOO" in capsys.readouterr().err


def test_an_unknown_name_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "grppo"])
    with pytest.raises(SystemExit) as ended:
        curves.main()
    assert ended.value.code == 2 and "dr_grpo" in capsys.readouterr().err


def test_the_results_page_shows_every_algorithm_with_its_current_settings() -> None:
    lines = [line for line in PAGE.read_text().partition(BEGIN)[2].partition(END)[0].splitlines() if "`" in line]
    assert [line.split("`")[1] for line in lines] == [case.command for case in CASES.values()]
    assert all(float(line.split("|")[-2]) >= curves.LEAST_RISE for line in lines)


def test_a_title_is_the_name_in_the_comment_of_the_algorithms_file() -> None:
    titles = {name: case.title for name, case in CASES.items()}
    assert titles.items() >= {"dr_grpo": "Dr. GRPO", "reinforce": "REINFORCE++", "dapo": "DAPO"}.items()
    assert all(title.replace(" ", "").replace(".", "").replace("+", "").isalpha() for title in titles.values())


@pytest.mark.slow
@pytest.mark.xdist_group("ring-1")
@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_learns(name: str, tmp_path: Path) -> None:
    actual = curves.run(name, tmp_path)
    assert actual["learnt"], actual["curve"]
