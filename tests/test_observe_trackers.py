"""Trackers: TensorBoard's files by TensorBoard's own reader; the others by stand-ins for their packages."""

import math
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.experiment import GRPOConfig
from areal_like.observe.trackers import NAMES, Trackers, is_wanted, open_tracker
from areal_like.observe.trackers.base import Tracker
from areal_like.process.run import Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text("defaults: [experiment: grpo]\nseed: 7\n")
    cls: Any = GRPOConfig
    config = cls(experiment_name="adding", trial_name="r0001")
    return Run(tmp_path, config, "grpo", "abc", tmp_path, tmp_path)


class Package:
    """Stands for wandb or swanlab: keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[Any, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            places: dict[Any, Any] = dict(enumerate(words))
            self.calls.append((name, places | named))
            return SimpleNamespace(**named) if name == "Settings" else self

        return call

    def named(self, name: str) -> list[dict[Any, Any]]:
        return [said for called, said in self.calls if called == name]


def tensorboard_values(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_tensorboard_shows_our_steps_and_the_newest_of_a_repeated_one(run: Run) -> None:
    run.config.stats_logger.tensorboard.path = "tensorboard"
    tracker = open_tracker("tensorboard", run)
    for step in (1, 2, 3):
        tracker.log(step, {"train/loss": float(step), "reward/mean": math.nan})
    tracker.rewind(1)
    tracker.log(2, {"train/loss": 20.0})
    tracker.close()
    assert tensorboard_values(run.directory / "tensorboard", "train/loss") == [(1, 1.0), (2, 20.0)]
    assert len(tensorboard_values(run.directory / "tensorboard", "reward/mean")) == 1


def test_every_tracker_is_off_by_default(run: Run) -> None:
    assert [is_wanted(name, run) for name in NAMES] == [False, False, False]
    with pytest.raises(ValueError, match=r"^mlflow: no such tracker; there are tensorboard, wandb, swanlab$"):
        open_tracker("mlflow", run)


def test_wandb_gets_what_the_configuration_says_and_our_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package()
    monkeypatch.setitem(sys.modules, "wandb", package)
    config = run.config.stats_logger.wandb
    config.mode, config.tags, config.config = "online", ["tiny"], {"note": 1}
    config.wandb_api_key, config.wandb_base_url = "a-key", "https://own.example"
    tracker = open_tracker("wandb", run)
    tracker.log(3, {"train/loss": 0.5})
    tracker.log(2, {"train/loss": 0.6})
    tracker.close()
    (said,) = package.named("init")
    assert (said["mode"], said["project"], said["name"], said["group"]) == ("online", "adding", "r0001", "adding_r0001")
    assert (said["id"], said["resume"], said["tags"]) == ("adding_r0001_train", "allow", ["tiny"])
    assert said["config"] == {"seed": 7, "note": 1} and said["dir"] == str(run.directory)
    assert (said["settings"].api_key, said["settings"].base_url) == ("a-key", "https://own.example")
    assert {0: "*", "step_metric": "step"} in package.named("define_metric")
    assert package.named("log") == [{0: {"step": 3, "train/loss": 0.5}}, {0: {"step": 2, "train/loss": 0.6}}]
    assert package.named("finish")


def test_swanlab_gets_what_the_configuration_says_and_our_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package()
    monkeypatch.setitem(sys.modules, "swanlab", package)
    config = run.config.stats_logger.swanlab
    config.mode, config.api_key, config.name = "cloud", "a-key", "mine"
    tracker = open_tracker("swanlab", run)
    tracker.log(3, {"train/loss": 0.5})
    tracker.close()
    assert package.named("login") == [{"api_key": "a-key", "save": False}]
    (said,) = package.named("init")
    assert (said["mode"], said["project"], said["name"], said["config"]) == ("online", "adding", "mine", {"seed": 7})
    assert said["log_dir"] == str(run.directory / "swanlab")
    assert package.named("log") == [{0: {"train/loss": 0.5}, "step": 3}]
    assert package.named("finish")


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_without_a_key_nobody_is_asked_for_one(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package, said = Package(), list[str]()
    monkeypatch.setitem(sys.modules, name, package)
    getattr(run.config.stats_logger, name).mode = "online"
    Trackers.of(run, said.append).close()
    assert len(said) == 1 and f"stats_logger.{name}: no API key; set {name.upper()}_API_KEY" in said[0]
    assert package.calls == []


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_package_that_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    said: list[str] = []
    monkeypatch.setitem(sys.modules, name, None)
    getattr(run.config.stats_logger, name).mode = "offline"
    opened = Trackers.of(run, said.append)
    opened.log(1, {"train/loss": 1.0})
    opened.close()
    assert len(said) == 1 and f"pip install {name}" in said[0]


class Kept(Tracker):
    """Remembers what it was told, fails at one step, waits at another."""

    def __init__(self, fails_at: int | None = None, waits_at: int | None = None) -> None:
        self.told: list[Any] = []
        self.fails_at, self.waits_at = fails_at, waits_at
        self.may_go_on = threading.Event()

    def log(self, step: int, values: Any) -> None:
        if step == self.fails_at:
            raise RuntimeError("the service\nis down")
        if step == self.waits_at:
            self.may_go_on.wait(120)
        self.told.append(step)

    def close(self) -> None:
        self.told.append("closed")


def test_a_tracker_that_fails_says_so_once_and_the_others_go_on() -> None:
    said: list[str] = []
    trackers, broken, sound = Trackers(said.append), Kept(fails_at=2), Kept()
    trackers.add("broken", lambda: broken)
    trackers.add("sound", lambda: sound)
    for step in (1, 2, 3):
        trackers.log(step, {"train/loss": 1.0})
    trackers.close()
    assert said == ["stats_logger.broken: the service is down; the run goes on without it"]
    assert broken.told == [1]
    assert sound.told == [1, 2, 3, "closed"]


def test_a_tracker_that_hangs_holds_nobody_up() -> None:
    said: list[str] = []
    trackers, slow, sound = Trackers(said.append), Kept(waits_at=1), Kept()
    trackers.add("slow", lambda: slow)
    trackers.add("sound", lambda: sound)
    trackers.log(1, {"train/loss": 1.0})
    trackers.log(2, {"train/loss": 1.0})
    trackers.close(limit_s=0.05)
    assert said == ["stats_logger.slow: has not sent everything within 0.05 s, and is left alone"]
    assert sound.told == [1, 2, "closed"]
    slow.may_go_on.set()
