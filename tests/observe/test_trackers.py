"""Trackers: TensorBoard's files by TensorBoard's own reader; the others by stand-ins for their packages, as
they want a service (tests/observe/test_trackers_real.py has the real ones)."""

import math
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.experiment import GRPOConfig
from areal_like.config.sections.trackers import TRACKERS, is_enabled
from areal_like.config.sections.trackers import LogExtras as LogExtrasConfig
from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers import fan_out, open_tracker
from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.fan_out import Trackers
from areal_like.observe.trackers.swanlab import CONSOLE
from areal_like.observe.trackers.writer_thread import MAX_PENDING
from areal_like.process.run import Run
from tests.support.tracker_packages import Package, tensorboard_events, tensorboard_values


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text("defaults: [experiment: grpo]\nseed: 7\n")
    cls: Any = GRPOConfig
    config = cls(experiment_name="adding", trial_name="r0001")
    return Run(tmp_path, config, "grpo", "abc", tmp_path, tmp_path)


EXTRAS = Extras(
    10,
    "train",
    [{"prompt": "1+1=", "answer": "2 | \n", "reward": 1.0}, {"prompt": "1+1=", "answer": "3", "reward": 0.25}],
    {"reward": [1.0, 0.25], "advantage": []},
)


def test_tensorboard_shows_steps_and_the_newest_of_a_repeated_one(run: Run) -> None:
    run.config.stats_logger.tensorboard.path = "tensorboard"
    tracker = open_tracker("tensorboard", run)
    for step in (1, 2, 3):
        tracker.log(step, {"train/loss": float(step), "reward/mean": math.nan})
    tracker.rewind(1)
    tracker.log(2, {"train/loss": 20.0})
    tracker.close()
    assert tensorboard_values(run.directory / "tensorboard", "train/loss") == [(1, 1.0), (2, 20.0)]
    assert len(tensorboard_values(run.directory / "tensorboard", "reward/mean")) == 1


def test_tensorboard_has_samples_as_a_table_and_distributions_as_histograms(run: Run) -> None:
    run.config.stats_logger.tensorboard.path = "tensorboard"
    tracker = open_tracker("tensorboard", run)
    tracker.log_extras(EXTRAS)
    tracker.log_extras(EXTRAS._replace(step=11))
    tracker.close()
    events = tensorboard_events(run.directory / "tensorboard")
    (histogram,) = events.Histograms("distributions/train/reward")
    assert (histogram.step, histogram.histogram_value.num, histogram.histogram_value.max) == (10, 2, 1.0)
    assert events.Tags()["histograms"] == ["distributions/train/reward"]
    (table,) = events.Tensors("samples/train")
    assert [size.size for size in table.tensor_proto.tensor_shape.dim] == [3, 3]
    cells = [cell.decode() for cell in table.tensor_proto.string_val]
    assert cells[:6] == ["prompt", "answer", "reward", "1+1=", "2 \\|  ⏎ ", "1"]


def test_every_tracker_is_off_by_default(run: Run) -> None:
    assert not any(is_enabled(name, run.config.stats_logger) for name in TRACKERS)
    with pytest.raises(ValueError, match=f"^mlflow: no such tracker; there are {', '.join(TRACKERS)}$"):
        open_tracker("mlflow", run)


def test_wandb_gets_the_configured_values_and_the_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package()
    monkeypatch.setitem(sys.modules, "wandb", package)
    config = run.config.stats_logger.wandb
    config.mode, config.tags, config.config = "online", ["tiny"], {"note": 1}
    config.wandb_api_key, config.wandb_base_url = "a-key", "https://own.example"
    tracker = open_tracker("wandb", run)
    tracker.log(3, {"train/loss": 0.5})
    tracker.log(2, {"train/loss": 0.6})
    tracker.close()
    (arguments,) = package.named("init")
    assert (arguments["mode"], arguments["project"], arguments["name"], arguments["group"]) == (
        "online",
        "adding",
        "r0001",
        "adding_r0001",
    )
    assert (arguments["id"], arguments["resume"], arguments["tags"]) == ("adding_r0001_train", "never", ["tiny"])
    assert arguments["config"] == {"seed": 7, "note": 1} and arguments["dir"] == str(run.directory)
    assert (arguments["settings"].api_key, arguments["settings"].base_url) == ("a-key", "https://own.example")
    assert {0: "*", "step_metric": "step"} in package.named("define_metric")
    assert package.named("log") == [{0: {"step": 3, "train/loss": 0.5}}, {0: {"step": 2, "train/loss": 0.6}}]
    assert package.named("finish")


def test_swanlab_gets_the_configured_values_and_the_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Package()
    console = Package()
    monkeypatch.setitem(sys.modules, "swanlab", package)
    monkeypatch.setitem(sys.modules, CONSOLE, console)
    config = run.config.stats_logger.swanlab
    config.mode, config.api_key, config.name = "cloud", "a-key", "mine"
    tracker = open_tracker("swanlab", run)
    tracker.log(3, {"train/loss": 0.5})
    tracker.close()
    assert package.named("login") == [{"api_key": "a-key", "save": False}]
    (arguments,) = package.named("init")
    assert (arguments["mode"], arguments["project"], arguments["name"], arguments["config"]) == (
        "online",
        "adding",
        "mine",
        {"seed": 7},
    )
    assert arguments["log_dir"] == str(run.directory / "swanlab")
    assert (arguments["id"], arguments["resume"]) == ("adding_r0001_abc", "allow")
    assert package.named("log") == [{0: {"train/loss": 0.5}, "step": 3}]
    assert package.named("finish")


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_without_a_key_no_prompt_appears(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package, warnings = Package(), list[str]()
    monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setattr(fan_out, "is_installed", lambda package: True)
    getattr(run.config.stats_logger, name).mode = "online"
    Trackers.of(run, warnings.append).close()
    (warning,) = warnings
    assert warning.startswith(f"stats_logger.{name}.mode: online needs an API key; set {name.upper()}_API_KEY")
    assert warning.endswith("; the run continues without it")
    assert package.calls == []


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_package_that_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(fan_out, "is_installed", lambda package: package != name)
    getattr(run.config.stats_logger, name).mode = "offline"
    opened = Trackers.of(run, warnings.append)
    opened.log(1, {"train/loss": 1.0})
    opened.close()
    assert len(warnings) == 1 and f"install -c constraints.txt {name} installs it" in warnings[0]


LogExtras: Any = LogExtrasConfig


class RecordingTracker(Tracker):
    """Remembers what it gets, fails at one step, waits at another."""

    def __init__(self, fails_at: int | None = None, waits_at: int | None = None) -> None:
        super().__init__(LogExtras())
        self.got: list[Any] = []
        self.fails_at, self.waits_at = fails_at, waits_at
        self.waits, self.may_go_on = threading.Event(), threading.Event()

    def log(self, step: int, values: Any) -> None:
        if step == self.fails_at:
            raise RuntimeError("the service\nis down")
        if step == self.waits_at:
            self.waits.set()
            self.may_go_on.wait()
        self.got.append(step)

    def show(self, extras: Extras) -> None:
        self.got.append((extras.purpose, extras.step, len(extras.samples), list(extras.distributions)))

    def close(self) -> None:
        self.got.append("closed")


def test_a_failing_tracker_is_reported_once_and_the_others_continue() -> None:
    warnings: list[str] = []
    trackers, broken, sound = Trackers(warnings.append, 60), RecordingTracker(fails_at=2), RecordingTracker()
    trackers.add("broken", lambda: broken)
    trackers.add("sound", lambda: sound)
    for step in (1, 2, 3):
        trackers.log(step, {"train/loss": 1.0})
    trackers.close()
    assert warnings == ["stats_logger.broken: the service is down; the run continues without it"]
    assert broken.got == [1]
    assert sound.got == [1, 2, 3, "closed"]


def test_the_end_of_a_run_waits_for_a_tracker_up_to_its_limit(run: Run) -> None:
    warnings: list[str] = []
    run.config.stats_logger.flush_timeout_s = 0.05
    trackers, hanging, sound = Trackers.of(run, warnings.append), RecordingTracker(waits_at=1), RecordingTracker()
    trackers.add("hanging", lambda: hanging)
    trackers.add("sound", lambda: sound)
    trackers.log(1, {"train/loss": 1.0})
    trackers.log(2, {"train/loss": 1.0})
    trackers.close()
    (warning,) = (warning for warning in warnings if "hanging" in warning)
    assert warning.startswith("stats_logger.hanging: has not sent everything 0.05 s after the run (flush_timeout_s)")
    assert sound.got[:2] == [1, 2]
    hanging.may_go_on.set()


def test_a_hanging_tracker_delays_no_step_and_uses_bounded_memory() -> None:
    """More steps than it may be behind: the others get them all, and one warning says what is left out."""
    warnings: list[str] = []
    trackers, hanging, sound = Trackers(warnings.append, 0), RecordingTracker(waits_at=1), RecordingTracker()
    trackers.add("hanging", lambda: hanging)
    trackers.log(1, {"train/loss": 1.0})
    hanging.waits.wait()
    trackers.add("sound", lambda: sound)
    steps = range(2, 2 * MAX_PENDING)
    for step in steps:
        trackers.log(step, {"train/loss": 1.0})
        if step % 100 == 0:
            caught_up = threading.Event()
            trackers._workers[1].put(partial(lambda event, tracker: event.set(), caught_up))
            caught_up.wait()
    assert sound.got == list(steps)[: len(sound.got)] and len(sound.got) > MAX_PENDING
    assert len(trackers._workers[0]._work) == MAX_PENDING
    trackers.close()
    assert [warning for warning in warnings if "hanging" in warning] == [
        f"stats_logger.hanging: is {MAX_PENDING} entries behind; new entries are dropped until it catches up; "
        "metrics.jsonl has everything"
    ]
    hanging.may_go_on.set()


def test_extras_are_sent_after_the_first_step_and_at_their_interval() -> None:
    tracker = RecordingTracker()
    for step in range(1, 22):
        tracker.log_extras(EXTRAS._replace(step=step))
    for step in (0, 4, 8, 12, 20, 30, 4):  # the last after a recovery
        tracker.log_extras(EXTRAS._replace(step=step, purpose="eval"))
    assert [(purpose, step) for purpose, step, *_ in tracker.got] == [
        *(("train", step) for step in (1, 10, 20)),
        *(("eval", step) for step in (0, 12, 30, 4)),
    ]


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (LogExtras(), (2, ["reward", "advantage"])),
        (LogExtras(samples=False), (0, ["reward", "advantage"])),
        (LogExtras(distributions=False), (2, [])),
        (LogExtras(samples=False, distributions=False), None),
        (LogExtras(interval=3), None),
    ],
)
def test_extras_are_sent_as_configured(config: Any, parts: Any) -> None:
    tracker = RecordingTracker()
    Tracker.__init__(tracker, config)
    tracker.log_extras(EXTRAS)
    assert tracker.got == ([("train", 10, *parts)] if parts else [])
