"""Effect of each tracker key: its value reaches the tracker's package."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.sections.trackers import is_enabled
from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers import open_tracker
from areal_like.observe.trackers.fan_out import Trackers
from areal_like.observe.trackers.run_ids import FILE
from areal_like.observe.trackers.swanlab import CONSOLE
from areal_like.process.run import Run
from tests.support.rollout_world import grpo
from tests.support.tracker_packages import Package, tensorboard_values

NAMES = ("experiment_name=adding", "trial_name=t1")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens a tracker by settings from a command line; returns the calls of its package."""
    for name in ("WANDB_API_KEY", "SWANLAB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.yaml").write_text("defaults: [experiment: grpo]\nseed: 7\n")

    def open_(name: str, *settings: str, keeps: bool = False, extras: Extras | None = None) -> Package:
        package = Package()
        package.__dict__["echarts"] = Package()
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, CONSOLE, Package())
        if not keeps:
            (tmp_path / FILE).unlink(missing_ok=True)
        words = [f"stats_logger.{name}.{setting}" for setting in settings]
        run = Run(tmp_path, grpo(*NAMES, *words), "grpo", "abc", tmp_path, tmp_path)
        assert is_enabled(name, run.config.stats_logger)
        tracker = open_tracker(name, run)
        if extras is not None:
            tracker.log_extras(extras)
        tracker.close()
        return package

    return open_


USUAL = {"project": "adding", "name": "t1", "group": "adding_t1", "id": "adding_t1_train", "entity": None}
WANDB: dict[str, tuple[str, dict[str, Any]]] = {
    "mode": ("mode=offline", {"mode": "offline"}),
    "entity": ("entity=us", {"entity": "us"}),
    "project": ("project=p", {"project": "p"}),
    "name": ("name=n", {"name": "n"}),
    "job_type": ("job_type=j", {"job_type": "j"}),
    "group": ("group=g", {"group": "g"}),
    "notes": ("notes=a note", {"notes": "a note"}),
    "tags": ("tags=[a,b]", {"tags": ["a", "b"]}),
    "config": ("config={team: x}", {"config": {"seed": 7, "team": "x"}}),
    "id_suffix": ("id_suffix=s", {"id": "adding_t1_s"}),
}


@pytest.mark.shows("stats_logger.wandb.{key}")
@pytest.mark.parametrize("key", WANDB)
def test_keys_of_wandb_are_passed_to_its_run(opened, key: str) -> None:
    setting, expected = WANDB[key]
    mode = [] if key == "mode" else ["mode=offline"]
    (arguments,) = opened("wandb", *mode, setting).named("init")
    assert {name: arguments[name] for name in expected} == expected
    if key != "mode":
        (usual,) = opened("wandb", *mode).named("init")
        assert all(usual[name] != value for name, value in expected.items())
        assert {name: usual[name] for name in USUAL} == USUAL


@pytest.mark.shows("stats_logger.wandb.{key}")
@pytest.mark.parametrize(("key", "option"), [("wandb_base_url", "base_url"), ("wandb_api_key", "api_key")])
def test_the_server_and_the_key_of_wandb_are_settings_of_its_run(opened, key: str, option: str) -> None:
    (arguments,) = opened("wandb", "mode=offline", f"{key}='https://own.example'").named("init")
    assert getattr(arguments["settings"], option) == "https://own.example"
    (usual,) = opened("wandb", "mode=offline").named("init")
    assert not hasattr(usual["settings"], option)


def test_an_id_of_wandb_may_end_with_the_time(opened) -> None:
    (arguments,) = opened("wandb", "mode=offline", "id_suffix=timestamp").named("init")
    assert arguments["id"].startswith(f"adding_t1_{time.strftime('%Y')}")


@pytest.mark.shows("stats_logger.wandb.id")
def test_an_id_of_wandb_continues_that_run(opened) -> None:
    """A run of another name is new, unless it is a resume."""
    (call,) = opened("wandb", "mode=offline", "id=mine").named("init")
    assert (call["id"], call["resume"]) == ("mine", "allow")
    (usual,) = opened("wandb", "mode=offline").named("init")
    assert (usual["id"], usual["resume"]) == ("adding_t1_train", "never")
    (again,) = opened("wandb", "mode=offline", keeps=True).named("init")
    assert (again["id"], again["resume"]) == ("adding_t1_train", "allow")


EXTRAS: dict[str, tuple[str, int, set[str]]] = {
    "samples": ("samples=false", 10, {"distributions/train/reward"}),
    "distributions": ("distributions=false", 10, {"samples/train"}),
    "interval": ("interval=4", 8, {"samples/train", "distributions/train/reward"}),
}


@pytest.mark.shows("stats_logger.{name}.log_extras.{key}")
@pytest.mark.parametrize("key", EXTRAS)
@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_log_extras_select_the_extra_values_sent(opened, key: str, name: str) -> None:
    setting, step, expected = EXTRAS[key]
    extras = Extras(step, "train", [{"prompt": "1+1=", "reward": 1.0}], {"reward": [1.0]})

    def sent(*settings: str) -> set[str]:
        calls = opened(name, "mode=offline", *settings, extras=extras).named("log")
        return {each for call in calls for each in call[0]} - {"step"}

    assert sent(f"log_extras.{setting}") == expected
    assert sent() == ({"samples/train", "distributions/train/reward"} if step == 10 else set())


SWANLAB: dict[str, tuple[str, dict[str, Any]]] = {
    "project": ("project=p", {"project": "p"}),
    "name": ("name=n", {"name": "n"}),
    "config": ("config={team: x}", {"config": {"seed": 7, "team": "x"}}),
    "logdir": ("logdir=/elsewhere", {"log_dir": "/elsewhere"}),
    "mode": ("mode=local", {"mode": "local"}),
}


@pytest.mark.shows("stats_logger.swanlab.{key}")
@pytest.mark.parametrize("key", SWANLAB)
def test_keys_of_swanlab_are_passed_to_its_run(opened, key: str) -> None:
    setting, expected = SWANLAB[key]
    mode = [] if key == "mode" else ["mode=offline"]
    (arguments,) = opened("swanlab", *mode, setting).named("init")
    assert {name: arguments[name] for name in expected} == expected
    (usual,) = opened("swanlab", "mode=offline").named("init")
    assert all(usual[name] != value for name, value in expected.items())


@pytest.mark.shows("experiment_name")
@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_the_experiment_name_is_the_project_of_a_tracker(opened, name: str) -> None:
    (arguments,) = opened(name, "mode=offline").named("init")
    assert arguments["project"] == "adding"


@pytest.mark.shows("stats_logger.swanlab.api_key")
def test_the_key_of_swanlab_logs_in(opened) -> None:
    package = opened("swanlab", "mode=cloud", "api_key=a-key")
    assert package.named("login") == [{"api_key": "a-key", "save": False}]
    assert not opened("swanlab", "mode=offline", "api_key=a-key").named("login")


@pytest.mark.shows("stats_logger.tensorboard.path")
def test_the_path_of_tensorboard_holds_its_files(tmp_path: Path) -> None:
    run = Run(tmp_path, grpo(*NAMES, "stats_logger.tensorboard.path=events"), "grpo", "abc", tmp_path, tmp_path)
    trackers = Trackers.of(run, print)
    trackers.log(2, {"train/loss": 0.5})
    trackers.close()
    assert tensorboard_values(tmp_path / "events", "train/loss") == [(2, 0.5)]
