"""A run with all its steps that is asked to go on: what counts as finished."""

import json
from pathlib import Path

import pytest
import yaml

from launcher.plan.plan import RunDirectory
from launcher.runs.finished import nothing_left
from tests.support.planning import loaded

RESUME = "resume=t"


def refusal(
    folder: Path,
    *overrides: str,
    step: int = 10,
    total: int | None = 10,
    outcome: str = "done",
    before: tuple[str, ...] = (),
) -> str | None:
    (folder / "summary.json").write_text(json.dumps({"outcome": outcome, "steps": 10}))
    (folder / "config.yaml").write_text(yaml.safe_dump(loaded("grpo", *before).values))
    directory = RunDirectory(str(folder), "t", "continues", "", step, 2)
    return nothing_left(loaded("grpo", *overrides), directory, total)


def test_a_finished_run_has_nothing_left(tmp_path: Path) -> None:
    text = refusal(tmp_path, RESUME)
    assert text is not None and "all 10 steps are done; nothing was started" in text
    assert text.endswith("total_train_steps=20 trains 10 more")


def test_its_own_command_starts_nothing_either(tmp_path: Path) -> None:
    text = refusal(tmp_path)
    assert text is not None and text.endswith("total_train_steps=20 trains 10 more; --replace starts over")


@pytest.mark.parametrize("total", [None, 300])
def test_a_run_that_ended_with_its_rows_has_nothing_left(tmp_path: Path, total: int | None) -> None:
    epochs = ("total_train_epochs=5",)
    text = refusal(tmp_path, RESUME, *epochs, total=total, before=epochs)
    assert text is not None and "all 5 epochs (10 steps) are done; nothing was started" in text
    assert text.endswith("total_train_epochs=10 trains 10 more")


def test_a_run_that_ended_with_fewer_steps_goes_on_to_more(tmp_path: Path) -> None:
    assert refusal(tmp_path, RESUME, "total_train_steps=20", total=20, before=("total_train_steps=10",)) is None


@pytest.mark.parametrize("changed", ["total_train_epochs=6", "train_dataset.batch_size=7", "total_train_n_seqs=900"])
def test_other_epochs_or_rows_may_have_steps_left(tmp_path: Path, changed: str) -> None:
    epochs = ("total_train_epochs=5",)
    assert refusal(tmp_path, RESUME, *epochs, changed, total=300, before=epochs) is None


@pytest.mark.parametrize(
    ("overrides", "step", "total", "outcome"),
    [
        ([], 10, 0, "done"),
        ([], 8, 10, "done"),
        ([], 10, 10, "stopped"),
        ([], 10, 20, "stopped"),
        (["resume_step=10"], 10, 10, "done"),
        (["recover.skip_progress=true"], 10, 10, "done"),
    ],
)
def test_another_start_has_something_to_do(
    tmp_path: Path, overrides: list[str], step: int, total: int | None, outcome: str
) -> None:
    assert refusal(tmp_path, RESUME, *overrides, step=step, total=total, outcome=outcome) is None


def test_without_a_summary_the_run_goes_on(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path), "t", "continues", "", 10, 2)
    assert nothing_left(loaded("grpo", RESUME), directory, 10) is None
