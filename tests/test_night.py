"""`make night` resumes, and keeps the result of each job."""

import json
from pathlib import Path

import pytest

from tests import night

PASSES, FAILS = ["-c", "print('fine')"], ["-c", "raise SystemExit('broken')"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(night, "RESULTS", tmp_path)
    monkeypatch.setattr(night, "ROOT", tmp_path.parent)
    monkeypatch.setattr(night, "jobs", lambda: {"one": PASSES, "two": FAILS})
    monkeypatch.setattr(night, "commit", lambda: "abc")
    monkeypatch.setattr("sys.argv", ["night"])
    return tmp_path


def test_stages_passed_at_this_commit_are_not_run_again(results, capsys):
    assert night.main() == 1
    assert json.loads((results / "one.json").read_text())["exit"] == 0
    assert "broken" in capsys.readouterr().out and (results / "two.log").read_text() == "broken\n"
    assert night.main() == 1
    out = capsys.readouterr().out
    assert "two ..." in out and "one ..." not in out


def test_another_commit_starts_over(results, monkeypatch, capsys):
    night.main()
    monkeypatch.setattr(night, "commit", lambda: "def")
    night.main()
    assert "one ..." in capsys.readouterr().out.partition("failed: two")[2]


def test_a_job_during_which_the_code_changed_is_no_result_of_a_commit(results, monkeypatch):
    codes = iter(["abc", "abc", "def", "def", "def"])
    monkeypatch.setattr(night, "commit", lambda: next(codes))
    night.main()
    assert json.loads((results / "one.json").read_text())["commit"] == "abc with changes"
    assert json.loads((results / "two.json").read_text())["commit"] == "def"
