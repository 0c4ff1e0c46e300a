"""A run's own config.yaml counts as the file that the run was started with: what is beside that one is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from areal_like.config.load import load
from areal_like.process.checkpoint_files import write_manifest
from areal_like.process.run import StartPoint
from launcher.plan.build import build_plan
from launcher.runs.run_files import write_description, write_start_point
from tests.support.commands import Done, Run, command_runner

FILE = """
defaults: [grpo, _self_]
experiment_name: mine
task: {name: null}
reward: {name: 'mine.py:right'}
train_dataset: {path: rows.jsonl, batch_size: 2}
valid_dataset: {path: held_out.jsonl}
"""
CODE = "def right(prompt, completion, answer):\n    return float(completion == answer)\n"


class Started(NamedTuple):
    """A run as its start in `work` described it, with a checkpoint. `folder` has what is beside the file."""

    folder: Path
    directory: Path
    run: Run


@pytest.fixture
def started(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Started:
    folder, work = tmp_path / "exp", tmp_path / "work"
    for each in (folder / "task", work, tmp_path / "elsewhere"):
        each.mkdir(parents=True)
    (folder / "x.yaml").write_text(FILE)
    (folder / "mine.py").write_text(CODE)
    (folder / "task" / "of_mine.yaml").write_text("# @package _global_\nseed: 7\n")
    for name in ("rows", "held_out"):
        lines = [json.dumps({"prompt": f"0{n}+04=", "answer": f"00{n + 4}"}) for n in range(4)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    run = command_runner(work, capfd, monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = describe(folder / "x.yaml", "trial_name=first")
    checkpoint = directory / "checkpoints" / "step_000001"
    (checkpoint / "resume").mkdir(parents=True)
    (checkpoint / "resume" / "state").write_text("state")
    write_manifest(checkpoint, 1)
    write_start_point(directory, StartPoint(1, 0, None))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return Started(folder, directory, run)


def describe(file: Path, *words: str) -> Path:
    loaded = load(file, words)
    plan = build_plan(loaded)
    directory = Path(plan.run_dir)
    directory.mkdir(parents=True)
    write_description(loaded, plan, "id", loaded.folder, Path.cwd(), 1)
    return directory


def resumed(one: Started) -> Done:
    return one.run(f"resume={one.directory}", "--dry-run")


def started_again(one: Started) -> Done:
    return one.run("--config", one.directory / "config.yaml", "trial_name=auto", "task=of_mine", "--dry-run")


def tried(one: Started) -> Done:
    Path("answers.jsonl").write_text(json.dumps({"row": 1, "completion": "005"}))
    return one.run("try", "--config", one.directory / "config.yaml", "--answers", "answers.jsonl")


def compared(one: Started) -> Done:
    return one.run("overlap", "--config", one.directory / "config.yaml")


@pytest.mark.parametrize("command", [resumed, started_again, tried, compared])
def test_code_data_and_groups_beside_the_file_of_the_start_are_found(
    started: Started, command: Callable[[Started], Done]
) -> None:
    done = command(started)
    assert done.code == 0, done.err


def test_a_run_that_is_started_with_the_file_of_another_has_its_folder(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(started.folder.parent / "work")
    second = describe(started.directory / "config.yaml", "trial_name=second")
    assert load(second / "config.yaml").folder == started.folder


def test_where_the_folder_is_gone_the_run_directory_is_searched(started: Started) -> None:
    for name in ("mine.py", "rows.jsonl", "held_out.jsonl"):
        (started.folder / name).rename(started.directory / name)
    shutil.rmtree(started.folder)
    for command in (resumed, tried, compared):
        done = command(started)
        assert done.code == 0, done.err


@pytest.mark.parametrize("facts", ["", "[]", "{}", '{"folder": null}'])
def test_another_file_of_the_name_is_its_own(tmp_path: Path, facts: str) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [grpo]\n")
    (tmp_path / "run.json").write_text(facts)
    assert load(tmp_path / "config.yaml").folder == tmp_path
