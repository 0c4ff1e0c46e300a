"""A run with all its steps that is asked to go on: what counts as finished."""

import json
from pathlib import Path

import pytest

from launcher.plan.plan import RunDirectory
from launcher.runs.finished import nothing_left
from tests.support.rollout_world import grpo


def refusal(folder: Path, *overrides: str, step: int = 10, total: int | None = 10, outcome: str = "done") -> str | None:
    (folder / "summary.json").write_text(json.dumps({"outcome": outcome, "steps": 10}))
    directory = RunDirectory(str(folder), "t", "continues", "", step, 2)
    return nothing_left(grpo("resume=t", *overrides), directory, total)


def test_a_finished_run_has_nothing_left(tmp_path: Path) -> None:
    text = refusal(tmp_path)
    assert text is not None and "all 10 steps are done; nothing was started" in text
    assert text.endswith("total_train_steps=20 trains 10 more")


@pytest.mark.parametrize(
    ("overrides", "step", "total", "outcome"),
    [
        ([], 10, 20, "done"),
        ([], 10, None, "done"),
        ([], 8, 10, "done"),
        ([], 10, 10, "stopped"),
        (["resume_step=10"], 10, 10, "done"),
        (["recover.skip_progress=true"], 10, 10, "done"),
    ],
)
def test_another_start_has_something_to_do(
    tmp_path: Path, overrides: list[str], step: int, total: int | None, outcome: str
) -> None:
    assert refusal(tmp_path, *overrides, step=step, total=total, outcome=outcome) is None


def test_without_a_summary_the_run_goes_on(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path), "t", "continues", "", 10, 2)
    assert nothing_left(grpo("resume=t"), directory, 10) is None
