"""The real packages of W&B and SwanLab, offline: written values are read back."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers import open_tracker
from areal_like.process.run import Run
from tests.support.rollout_world import grpo
from tests.support.tracker_packages import swanlab_records, wandb_history, wandb_records

NAMES = ("experiment_name=adding", "trial_name=t1")
TRAIN = Extras(
    10,
    "train",
    [{"prompt": "1+1=", "answer": "2", "reward": 1.0}, {"prompt": "1+1=", "answer": "3\n", "reward": 0.25}],
    {"reward": [1.0, 0.25, 0.25], "advantage": [0.5, -0.5], "group_reward": []},
)
EVAL = Extras(10, "eval", [{"row": 7, "answer": "2", "score": 1.0}], {"score": [1.0, 0.0]})


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_DATA_HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


def make_run(folder: Path, *settings: str) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("seed: 7\n")
    words = [f"stats_logger.{setting}" for setting in settings]
    return Run(folder, grpo(*NAMES, *words), "grpo", "abc", folder, folder)


def log_a_recovered_run(run: Run, name: str) -> None:
    """Three steps, back to the first, the second again; then samples and distributions."""
    tracker = open_tracker(name, run)
    for step in (1, 2, 3):
        tracker.log(step, {"train/loss": 1.0 / step, "reward/mean": float("nan") if step == 3 else 0.5})
    tracker.rewind(1)
    tracker.log(2, {"train/loss": 7.0})
    tracker.log_extras(TRAIN)
    tracker.log_extras(EVAL)
    tracker.close()


def test_wandb_offline_has_the_values_and_a_resumed_run_keeps_its_id(tmp_path: Path, capfd: Any) -> None:
    settings = ["mode=offline", "tags=[tiny,cpu]", "notes=a note", "group=sums", "job_type=try", "config={team: x}"]
    run = make_run(tmp_path / "run", *(f"wandb.{setting}" for setting in settings), "wandb.id_suffix=timestamp")
    log_a_recovered_run(run, "wandb")
    (first,) = run.directory.glob("wandb/offline-run-*/*.wandb")

    (facts,) = (each.run for each in wandb_records(first) if each.WhichOneof("record_type") == "run")
    assert (facts.project, facts.display_name, facts.run_group, facts.job_type) == ("adding", "t1", "sums", "try")
    assert (facts.notes, list(facts.tags)) == ("a note", ["tiny", "cpu"])
    config = {each.key: json.loads(each.value_json) for each in facts.config.update}
    assert (config["seed"], config["team"]) == (7, "x")

    history = wandb_history(first)
    assert [(row["step"], row["train/loss"]) for row in history if "train/loss" in row] == [
        *((1, 1.0), (2, 0.5), (3, 1.0 / 3)),
        (2, 7.0),
    ]
    assert math.isnan(history[2]["reward/mean"])
    (axes,) = (each.metric for each in wandb_records(first) if each.metric.glob_name == "*")
    assert axes.step_metric == "step"

    train, evaluation = history[-2:]
    assert (train["step"], evaluation["step"]) == (10, 10)
    table = json.loads((first.parent / "files" / train["samples/train.path"]).read_text())
    assert table["columns"] == TRAIN.columns and table["data"] == TRAIN.rows
    assert sum(train["distributions/train/reward.values"]) == 3 and "distributions/train/group_reward" not in train
    assert train["distributions/train/advantage.bins"][0] == -0.5
    table = json.loads((first.parent / "files" / evaluation["samples/eval.path"]).read_text())
    assert table["data"] == [[7, "2", 1.0]] and sum(evaluation["distributions/eval/score.values"]) == 2

    log_a_recovered_run(run, "wandb")  # as after resume=
    ids = set()
    for file in run.directory.glob("wandb/offline-run-*/*.wandb"):
        ids |= {each.run.run_id for each in wandb_records(file) if each.WhichOneof("record_type") == "run"}
    assert ids == {facts.run_id} and facts.run_id.startswith("adding_t1_2")
    assert capfd.readouterr() == ("", ""), "the terminal shows the run"


def test_swanlab_offline_has_the_values(tmp_path: Path, capfd: Any) -> None:
    run = make_run(tmp_path / "run", "swanlab.mode=offline", "swanlab.config={team: x}", "swanlab.name=mine")
    log_a_recovered_run(run, "swanlab")
    (file,) = run.directory.glob("swanlab/run-*/*.swanlab")
    records = list(swanlab_records(file))
    (start,) = (each.start for each in records if each.HasField("start"))
    assert (start.project, start.name, start.id) == ("adding", "mine", "adding_t1_abc")
    config = (file.parent / "files" / "config.yaml").read_text()
    assert "seed" in config and "team" in config
    losses = [each.scalar for each in records if each.HasField("scalar") and each.scalar.key == "train/loss"]
    # It keeps what a step was given first: docs/trackers.md says so.
    assert [(each.step, each.value.number) for each in losses] == [(1, 1.0), (2, 0.5), (3, 1.0 / 3)]
    media = {each.media.key: each.media for each in records if each.HasField("media")}
    assert {*media} == {
        *("samples/train", "distributions/train/reward", "distributions/train/advantage"),
        *("samples/eval", "distributions/eval/score"),
    }
    charts = {key: _chart(file.parent, each.value.items[0].filename) for key, each in media.items()}
    rows = charts["samples/train"]["rowData"]
    assert rows == [dict(each) for each in TRAIN.samples] and media["samples/train"].step == 10
    assert sum(charts["distributions/train/reward"]["series"][0]["data"]) == 3
    assert capfd.readouterr() == ("", ""), "the terminal shows the run"


def _chart(folder: Path, name: str) -> Any:
    (file,) = folder.glob(f"media/echarts/{name}")
    return json.loads(file.read_text())
