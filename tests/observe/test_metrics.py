"""The catalogue of metrics, and metric lines written and read."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.observe.metrics import GROUPS, LINE_FIELDS, METRICS, find_metric
from areal_like.observe.reading import LineFollower, read_metrics, values_of
from areal_like.observe.timing import Stopwatch
from areal_like.observe.writer import MetricWriter
from areal_like.process.identity import Identity
from docs.make import metrics_page


def writer(folder: Path, role: str = "trainer", attempt: int = 1) -> MetricWriter:
    run: Any = SimpleNamespace(directory=folder, metrics=folder / "metrics")
    return MetricWriter(run, Identity(role, 0, attempt))


def test_every_name_is_in_a_group_and_explained() -> None:
    for name, metric in METRICS.items():
        assert name.split("/")[0] in GROUPS, name
        assert metric.help and metric.help[0].isupper() and not metric.help.endswith("."), name
    assert {name.split("/")[0] for name in METRICS} == set(GROUPS)


def test_the_page_has_every_name() -> None:
    text = metrics_page.render()
    assert all(f"| `{name}` | {metric.unit} | {metric.help} |" in text for name, metric in METRICS.items())


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("train/loss", True),
        ("reward/part/exact", True),
        ("reward/part/code/speed", True),
        ("offpolicy/staleness_share/2", True),
        ("train/los", False),
        ("train/loss/more", False),
        ("reward/part/", False),
        ("reward/part/*", False),
        ("step", False),
    ],
)
def test_a_name_is_known_exactly_or_by_its_pattern(name: str, known: bool) -> None:
    assert (find_metric(name) is not None) == known


def test_a_line_is_written_at_once_and_names_its_process(tmp_path: Path) -> None:
    mine = writer(tmp_path, attempt=3)
    mine.write(1, {"train/loss": 0.5, "reward/part/exact": 1})
    mine.write(2, {"train/loss": math.nan, "train/grad_norm": math.inf})
    first, second = (json.loads(line) for line in (tmp_path / "metrics/trainer-0.jsonl").read_text().splitlines())
    assert set(LINE_FIELDS) < set(first) and first["step"] == 1 and first["attempt"] == 3 and first["time"] > 1e9
    assert first["train/loss"] == 0.5 and first["reward/part/exact"] == 1.0
    assert second["train/loss"] is None and second["train/grad_norm"] is None
    assert math.isnan(values_of(second)["train/loss"])


def test_the_error_of_an_evaluation_is_stored_short_and_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "value-of-the-judge")
    error = f"first\x1b[2J\ud800 value-of-the-judge password=p4ssword\n{'x' * 300_000}\nvalue-of-the-judge: the end"
    writer(tmp_path).write(1, {"eval/score": 0.5}, error)
    (line,) = LineFollower(tmp_path / "metrics/trainer-0.jsonl").new_lines()
    stored = line["eval/error"]
    assert stored.startswith(r"first\x1b[2J\ud800 <secret> password=<secret>") and stored.endswith("<secret>: the end")
    assert len(stored) < 4100


def test_the_error_of_an_evaluation_is_in_its_line_and_no_metric(tmp_path: Path) -> None:
    mine = writer(tmp_path)
    mine.write(1, {"eval/score": 0.5}, "ValueError: it is down")
    mine.write(2, {"eval/score": 0.5})
    first, second = LineFollower(tmp_path / "metrics/trainer-0.jsonl").new_lines()
    assert first["eval/error"] == "ValueError: it is down" and "eval/error" not in second
    assert values_of(first) == values_of(second) == {"eval/score": 0.5}


@pytest.mark.parametrize("name", ["train/lose", "loss", "time"])
def test_an_undocumented_metric_is_refused_and_nothing_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: no such metric"):
        writer(tmp_path).write(1, {"train/loss": 1.0, name: 1.0})
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_rest_of_a_partial_line_is_awaited(tmp_path: Path) -> None:
    path = tmp_path / "trainer-0.jsonl"
    follower = LineFollower(path)
    assert follower.new_lines() == []
    path.write_bytes(b'{"step":1,"train/loss":1.0}\n{"step":2,"tra')
    assert [line["step"] for line in follower.new_lines()] == [1]
    assert follower.new_lines() == []
    with path.open("ab") as file:
        file.write(b'in/loss":0.5}\n')
    assert [line["train/loss"] for line in follower.new_lines()] == [0.5]


def test_a_broken_line_is_skipped_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1,"train/loss":1.0}\n{"step":2,"tra{"step":2,"train/loss":0.5}\n[]\n{"step":3}\n')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 3]
    assert len(caplog.records) == 2 and str(path) in caplog.text


def test_steps_are_read_merged_and_in_order(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "eval/score": 0.4, "time": 1.0},
        {"step": 2, "attempt": 1, "time": 3.0, "train/loss": 0.9},
        {"step": 1, "attempt": 1, "time": 2.0, "train/loss": 1.0},
        {"step": 1, "eval/score": 0.5, "time": 9.0},
        {"step": 2, "attempt": 2, "time": 4.0, "train/loss": 0.8},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_metrics(tmp_path)
    assert [line["step"] for line in found] == [0, 1, 2]
    assert found[1]["train/loss"] == 1.0 and found[1]["eval/score"] == 0.5
    assert found[2]["train/loss"] == 0.8 and found[2]["attempt"] == 2
    assert [line["time"] for line in found] == [1.0, 2.0, 4.0], "the time is that of the step, not of its evaluation"
    assert read_metrics(tmp_path / "nowhere") == []


def test_steps_have_no_text_of_their_evaluations(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "train/loss": 1.0, "time": 1.0},
        {"step": 1, "eval/due_step": 0, "eval/failed": 2, "eval/error": "ValueError: it is down", "time": 2.0},
        {"step": 1, "eval/due_step": 1, "eval/failed": 0, "time": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (merged,) = read_metrics(tmp_path)
    assert merged == {"step": 1, "train/loss": 1.0, "time": 1.0, "eval/due_step": 1, "eval/failed": 0}


def test_a_stopwatch_adds_up_by_name_and_resets() -> None:
    watch = Stopwatch()
    for _ in range(2):
        with watch("train"), watch("forward"):
            pass
    with pytest.raises(KeyError), watch("publish"):
        raise KeyError
    assert list(watch.seconds) == ["forward", "train", "publish"]
    assert 0 <= watch.seconds["forward"] <= watch.seconds["train"] <= watch.elapsed()
    assert watch.take() and watch.seconds == {}


def test_no_torch_anywhere_and_trackers_packages_only_where_they_are_used() -> None:
    code = (
        "import pkgutil, importlib, sys, areal_like.observe as room\n"
        "here = lambda *names: [name for name in names if name in sys.modules]\n"
        "names = [found.name for found in pkgutil.walk_packages(room.__path__, room.__name__ + '.')]\n"
        "for name in names:\n"
        "    if not name.endswith('trackers.tensorboard'): importlib.import_module(name)\n"
        "print(here('torch', 'transformers', 'tensorboard', 'wandb', 'swanlab'))\n"
        "importlib.import_module('areal_like.observe.trackers.tensorboard')\n"
        "print(here('torch', 'transformers', 'tensorflow', 'wandb', 'swanlab'), len(names) > 15)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[]", "[] True"], done.stderr or done.stdout
