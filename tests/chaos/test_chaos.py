"""Whatever happens to a run, it ends complete or can be completed, with an exact ledger and nothing left behind."""

import itertools
import json
import sys
from collections import Counter

import pytest

from tests.chaos import __main__ as command
from tests.chaos.cases import HANG, KILL, KINDS, STEPS, STOP, Case, draw
from tests.chaos.trials import COMPLETE, FAILED, MISSED, NOT_RUN, RESUMED, Result, attempt

CHOSEN = (3, 7, 18)
"""A killed controller, rewards that stop for a while, a killed guardian."""


@pytest.mark.xdist_group("ring-2")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", CHOSEN)
def test_a_run_outlives_what_a_draw_does_to_it(number, tmp_path):
    result = attempt(draw(1, number, ("embedded",), (KILL, STOP)), tmp_path / "run")
    assert result.outcome in (COMPLETE, RESUMED), result.line()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(20))
def test_runs_of_all_kinds_outlive_what_draws_do_to_them(number, tmp_path):
    result = attempt(draw(1, number), tmp_path / "run")
    if result.outcome == MISSED:  # on a busy machine a run may have ended before it is looked at
        result = attempt(draw(1, number), tmp_path / "again")
    if result.outcome in (NOT_RUN, MISSED):
        pytest.skip(result.whom)
    assert result.outcome in (COMPLETE, RESUMED), result.line()


def test_a_draw_is_repeated_by_its_numbers_and_reaches_every_role_and_action():
    cases = [draw(7, number) for number in range(3000)]
    assert cases == [draw(7, number) for number in range(3000)]
    assert len({draw(seed, 0) for seed in range(40)}) > 30
    assert {case.step for case in cases if case.kind == "embedded"} >= {0, 1, STEPS - 1, STEPS}
    for kind in KINDS:
        drawn = {(case.target, case.action) for case in cases if case.kind == kind.name}
        assert {target for target, _ in drawn} == {*kind.roles, *(target for target, _ in kind.others)}
        assert drawn >= {*kind.others, *itertools.product(kind.roles, (KILL, STOP, HANG))}
    assert {draw(7, number, ("agent",), (KILL,)).kind for number in range(20)} == {"agent"}


def test_an_interrupted_series_goes_on_and_a_failed_case_can_be_tried_again(tmp_path, monkeypatch, capsys):
    tried: list[int] = []

    def fake(case: Case, folder: object) -> Result:
        tried.append(case.number)
        if len(tried) == 2:
            raise KeyboardInterrupt
        return Result(case, FAILED if case.number == 2 and tried.count(2) == 1 else COMPLETE, 1.0, problems=["lost"])

    def series(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["chaos", "--seed", "3", "--n", "4", "--out", str(tmp_path), *words])
        return command.main()

    monkeypatch.setattr(command, "attempt", fake)
    monkeypatch.setattr(command, "commit", lambda: "abc")
    with pytest.raises(KeyboardInterrupt):
        series()
    assert series() == 1 and tried == [0, 1, 1, 2, 3]
    assert series("--only", "2") == 0 and series() == 0 and tried[5:] == [2]
    table = (tmp_path / "table.md").read_text()
    assert "complete" in table and "failed" not in table and "lost" in capsys.readouterr().out


def test_a_series_counts_no_result_of_another_commit_or_of_uncommitted_changes(tmp_path, monkeypatch, capsys):
    tried: list[int] = []

    def fake(case: Case, folder: object) -> Result:
        tried.append(case.number)
        return Result(case, COMPLETE, 1.0)

    def series(commit: str) -> int:
        monkeypatch.setattr(command, "commit", lambda: commit)
        tried.clear()
        return command.main()

    monkeypatch.setattr(command, "attempt", fake)
    monkeypatch.setattr(sys, "argv", ["chaos", "--seed", "3", "--n", "3", "--out", str(tmp_path)])
    assert series("abc") == 0 and tried == [0, 1, 2]
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"seed": 3, "number": 0, "text": "a line without a commit"}\n')
    capsys.readouterr()
    assert series("def") == 0 and tried == [0, 1, 2]
    assert "goes on after 0 results of commit def; 4 of other code" in capsys.readouterr().out
    assert series("def") == 0 and tried == []
    assert "goes on after 3 results of commit def; 4 of other code" in capsys.readouterr().out
    for _ in range(2):
        assert series("def with changes") == 0 and tried == [0, 1, 2]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert Counter(line.get("commit") for line in lines) == {"abc": 3, None: 1, "def": 3, "def with changes": 6}
