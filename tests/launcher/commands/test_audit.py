"""`audit` finds groups that a run has lost, trained on twice or too late, with the limit of each attempt."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.process.run import LEDGER
from launcher.plan.build import build_plan
from launcher.runs.run_files import write_description
from tests.support.commands import Done, Run, command_runner


def batch(step: int, group: int) -> list[dict[str, Any]]:
    return [{"event": name, "step": step, "groups": [group]} for name in ("batched", "trained")]


def of_group(group: int, version: int = 0) -> list[dict[str, Any]]:
    return [{"event": "submitted", "group": group}, {"event": "finished", "group": group, "versions": [version] * 2}]


BEGUN = {"event": "begun", "steps": 4, "max_staleness": 1}
SOUND = [BEGUN, *of_group(0), *of_group(1), *batch(0, 0), *batch(1, 1)]
RECOVERED = {"event": "recovered", "step": 1, "next": 2, "again": [1], "ready": [], "data_anew": False, "attempt": 2}
STRICTER = {**BEGUN, "max_staleness": 0, "attempt": 2}


@pytest.fixture
def audited(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    run: Run = command_runner(tmp_path, capsys, monkeypatch)
    loaded = load("grpo.yaml", [f"cluster.fileroot={tmp_path}", "trial_name=t"])
    plan = build_plan(loaded)
    directory = Path(plan.run_dir)
    directory.mkdir(parents=True)
    write_description(loaded, plan, "id", tmp_path, tmp_path, 1)

    def audited(events: list[dict[str, Any]] | None, *words: str) -> Done:
        if events is not None:
            ledger = directory / "rollouts" / LEDGER
            ledger.parent.mkdir(exist_ok=True)
            ledger.write_text("".join(json.dumps({"attempt": 1, **event}) + "\n" for event in events))
        return run("audit", str(directory), *words)

    return audited


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (SOUND, ["2 steps, 1 attempt", "2 groups: 2 trained", "nothing is wrong", "(limit: 1 weight version)"]),
        ([*SOUND, RECOVERED, STRICTER, *of_group(1, 1)[1:], *batch(1, 1)], ["2 attempts", "nothing is wrong"]),
        (
            [*SOUND, RECOVERED, STRICTER, *of_group(1)[1:], *batch(1, 1)],
            ["group 1 was 1 versions old in step 1, above 0"],
        ),
        ([BEGUN, *of_group(0), *batch(0, 0), *batch(1, 0)], ["group 0 was trained on in steps 0 and 1"]),
        ([BEGUN, *of_group(1)], ["groups [0] were never submitted"]),
    ],
    ids=["sound", "resumed", "old", "twice", "lost"],
)
def test_a_ledger_is_audited_over_all_attempts(audited: Any, events: list[dict[str, Any]], says: list[str]) -> None:
    done = audited(events)
    assert all(each in done.out for each in says), done.out
    assert done.code == (0 if "nothing is wrong" in done.out else 1)


def test_many_problems_are_counted(audited: Any) -> None:
    done = audited([BEGUN, *(event for group in range(50) for event in of_group(group)[1:])])
    assert done.code == 1 and "and 30 more problems" in done.out


def test_a_run_without_a_ledger_and_other_words_are_refused(audited: Any) -> None:
    for words, says in (((), "runs that generate answers have a ledger"), (("step=3",), "audit takes only a run")):
        done = audited(None, *words)
        assert done.code == 2 and says in done.err, done
