"""A tracker that cannot be used is an error of the plan, with the command that installs its package."""

import shlex
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml

from areal_like.config import install_command
from areal_like.config.fields import config, key, section
from areal_like.config.install_command import pip_command
from areal_like.config.sections.trackers import (
    TRACKERS,
    LogExtras,
    SwanlabConfig,
    TensorBoardConfig,
    TrackerKind,
    register_tracker,
)
from areal_like.config.sources.library import data_folder
from areal_like.observe.trackers.requirements import is_installed, missing_requirements, off_switch, tracker_packages
from launcher.cli import main
from tests.support.commands import command_runner
from tests.support.planning import machine_with, plan_of

BARE = machine_with()._replace(packages=frozenset())


@pytest.fixture(autouse=True)
def _no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SWANLAB_API_KEY", "SWANLAB_ROOT", "SWANLAB_SAVE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def lacking(*overrides: str, host=BARE) -> dict[str, str]:
    plan = plan_of("grpo", *overrides, host=host)
    return {each.key: each.message for each in plan.needs if each.key.startswith("stats_logger.")}


@pytest.mark.parametrize(
    ("override", "key", "package"),
    [
        ("stats_logger.wandb.mode=offline", "stats_logger.wandb.mode", "wandb"),
        ("stats_logger.swanlab.mode=offline", "stats_logger.swanlab.mode", "swanlab"),
        ("tracker=tensorboard", "stats_logger.tensorboard.path", "tensorboard"),
    ],
)
def test_a_tracker_without_its_package_is_an_error_of_the_plan(override, key, package):
    off = ["stats_logger.tensorboard.path=null"] if "tensorboard" not in override else []
    (reason,) = lacking(*off, override).values()
    assert reason.startswith(f"needs the package {package}, which is not installed; ")
    assert f"install -c constraints.txt {package} installs it, {key}=" in reason
    assert not lacking(*off, override, host=machine_with())
    assert not lacking("stats_logger.tensorboard.path=null")


def test_the_dashboard_of_swanlab_is_a_separate_package():
    (reason,) = lacking("stats_logger.swanlab.mode=local", host=machine_with()).values()
    assert reason.startswith("local needs the package swanboard") and "stats_logger.swanlab.mode=offline" in reason
    there = machine_with()._replace(packages=frozenset({"swanlab", "swanboard", "tensorboard"}))
    assert not lacking("stats_logger.swanlab.mode=local", host=there)


def test_a_start_without_the_package_ends_with_2_and_names_the_key_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.plan.host.is_installed", lambda package: False)
    assert main(["--config", "grpo.yaml", "tracker=wandb"]) == 2
    line = next(line for line in capsys.readouterr().err.splitlines() if "wandb" in line)
    assert line.startswith("stats_logger.wandb.mode [") and "]: needs the package wandb, which is" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "name", "variable", "login", "entry"),
    [
        ("stats_logger.wandb.mode=online", "wandb", "WANDB_API_KEY", ".netrc", "machine api.wandb.ai login user"),
        ("stats_logger.swanlab.mode=cloud", "swanlab", "SWANLAB_API_KEY", ".swanlab/.netrc", "machine h login l"),
    ],
)
def test_a_hosted_tracker_needs_a_key(tmp_path, monkeypatch, mode, name, variable, login, entry):
    here = machine_with()._replace(directory=tmp_path)
    key = f"stats_logger.{name}.mode"
    reason = lacking(mode, host=here)[key]
    assert f"needs an API key; set {variable} in the environment" in reason and reason.endswith(f"{key}=offline")
    assert not lacking(f"stats_logger.{name}.mode=offline", host=here)
    with monkeypatch.context() as patch:
        patch.setenv(variable, "secret")
        assert not lacking(mode, host=here)
    (tmp_path / "keys").write_text(f"{variable}=secret\n")
    assert not lacking(mode, "launcher.env_file=[keys]", host=here)
    (tmp_path / login).parent.mkdir(exist_ok=True)
    (tmp_path / login).write_text(f"{entry} password secret\n")
    assert not lacking(mode, host=here)


def trackers(**enabled: dict[str, Any]) -> Any:
    """A section `stats_logger`, with the values of the trackers that are enabled."""
    classes: dict[str, Any] = {name: kind.section for name, kind in TRACKERS.items()}
    return SimpleNamespace(**{name: cls(**enabled.get(name, {})) for name, cls in classes.items()})


def test_a_further_tracker_of_files_needs_the_package_it_names_and_no_key(monkeypatch):
    """Whatever the mode of the others is."""
    kind = TrackerKind(TensorBoardConfig, "package.module:Lines", package="line_writer")
    monkeypatch.setitem(TRACKERS, "lines", kind)
    config = trackers(lines={"path": "lines"}, wandb={"mode": "online"})
    missing = dict(missing_requirements(config, {"wandb", "lines"}, {}))
    assert missing["lines"].key == "stats_logger.lines.path"
    assert missing["lines"].message.startswith("needs the package line_writer, which is not installed; ")
    assert missing["lines"].message.endswith(", stats_logger.lines.path=null disables the tracker")
    assert "line_writer" in tracker_packages()
    assert set(dict(missing_requirements(config, {"wandb", "line_writer"}, {}))) == {"wandb"}


def test_a_tracker_that_names_no_package_needs_none(monkeypatch):
    monkeypatch.setitem(TRACKERS, "lines", TrackerKind(TensorBoardConfig, "package.module:Lines"))
    assert not list(missing_requirements(trackers(lines={"path": "lines"}), (), {}))
    assert not {"lines", None} & set(tracker_packages())


OWN = '''
from areal_like import TrackerKind, register_tracker
from areal_like.config.experiment import GRPOConfig
from areal_like.config.fields import config, key, section
from areal_like.config.sections.trackers import LogExtras, StatsLoggerConfig

@config
class BoardConfig:
    """A board of the laboratory."""

    mode: str = key("disabled", choices=("disabled", "online"))
    """`online` sends during the run."""
    token: str = key("", secret=True)
    """API key."""
    log_extras: LogExtras = section(LogExtras)
    """Samples."""

@config
class StatsConfig(StatsLoggerConfig):
    board: BoardConfig = section(BoardConfig)
    """The board."""

@config
class BoardGRPOConfig(GRPOConfig):
    stats_logger: StatsConfig = section(StatsConfig)
    """Trackers."""

@config
class PlainGRPOConfig(GRPOConfig):
    """Without the section."""

register_tracker("board", TrackerKind(BoardConfig, "board:Board", online=("online",), api_key="token"))
'''


def test_a_dry_run_checks_the_tracker_that_a_users_schema_registers(tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(OWN)
    run = command_runner(tmp_path, capsys, monkeypatch)
    words = ("--config", "grpo.yaml", "--schema", "own.py:BoardGRPOConfig", "--dry-run=full")
    mode, refusal = "stats_logger.board.mode=online", "online needs an API key; set BOARD_API_KEY in the environment"
    with mock.patch.dict(TRACKERS):
        assert refusal not in run.answer(*words)
        assert refusal in " ".join(run(*words, mode).out.split())
        assert refusal not in run.answer(*words, mode, "stats_logger.board.token=secret")
        assert "disabled bench: metrics" in " ".join(run.answer(*words, mode, "bench=true").split())
        message = run.refusal("--config", "grpo.yaml", "--schema", "own.py:PlainGRPOConfig", "--dry-run")
    assert "the tracker board is registered, but the class has no section stats_logger.board" in message


@config
class Undeclared:
    path: str | None = None
    log_extras: LogExtras = section(LogExtras)


@config
class BothWays(TensorBoardConfig):
    mode: str = key("disabled")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TrackerKind(LogExtras, "m:C"), "LogExtras has no log_extras, no mode or path, which the tracker board needs"),
        (TrackerKind(TensorBoardConfig, "m:C", online=("online",)), "has online, but no mode and api_key"),
        (TrackerKind(SwanlabConfig, "m:C", online=("online",), api_key="token"), "SwanlabConfig has no token, which"),
        (TrackerKind(Undeclared, "m:C"), r"^Undeclared\.path is no key .*; declare path with key\(\)$"),
        (TrackerKind(BothWays, "m:C"), "^BothWays has mode and path; leave out path if"),
    ],
)
def test_a_section_without_the_keys_of_a_tracker_is_refused(kind, message):
    with pytest.raises(ValueError, match=message):
        register_tracker("board", kind)
    assert "board" not in TRACKERS


def test_a_name_that_another_writer_has_is_refused():
    with mock.patch.dict(TRACKERS):
        for _ in range(2):  # a module may be imported twice
            register_tracker("board", TrackerKind(TensorBoardConfig, "m:C"))
        for name, writer in (("board", "m:C"), ("wandb", TRACKERS["wandb"].writer)):
            with pytest.raises(ValueError, match=f"{name} is registered already, with {writer}; take another name"):
                register_tracker(name, TrackerKind(TensorBoardConfig, "other:C"))


def test_tracker_none_disables_each_of_them():
    values = yaml.safe_load((data_folder("conf") / "tracker" / "none.yaml").read_text())
    for name in TRACKERS:
        key, off = off_switch(name)
        assert str(values[name][key.rpartition(".")[2]]).replace("None", "null") == off


def test_the_modes_of_a_tracker_that_need_a_key_are_declared_beside_its_section(monkeypatch):
    kind = TrackerKind(SwanlabConfig, "package.module:Further", "swanlab", online=("local",), api_key="project")
    monkeypatch.setitem(TRACKERS, "swanlab", kind)
    packages, config = {"swanlab", "swanboard"}, trackers(swanlab={"mode": "local"})
    assert [problem.key for _, problem in missing_requirements(config, packages, {})] == ["stats_logger.swanlab.mode"]
    with_key = trackers(swanlab={"mode": "local", "project": "the key"})
    assert not list(missing_requirements(with_key, packages, {}))


def test_extras_at_their_defaults_give_no_warning():
    assert not [text for text in plan_of("grpo", "stats_logger.wandb.mode=offline").warnings if "log_extras" in text]
    off = plan_of("grpo", "stats_logger.wandb.log_extras.interval=5").warnings
    assert any(
        text.startswith("stats_logger.wandb.log_extras.interval: has no effect: this tracker is off") for text in off
    )
    words = ["stats_logger.wandb.mode=offline", "stats_logger.wandb.log_extras.samples=false"]
    assert any("supervised training samples no answers" in text for text in plan_of("sft", *words).warnings)


def test_a_leftover_wandb_folder_is_not_its_package(tmp_path, monkeypatch):
    (tmp_path / "left_over").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("left_over")
    (tmp_path / "left_over" / "__init__.py").touch()
    sys.modules.pop("left_over", None)
    assert is_installed("left_over")


class TestPipInstall:
    def test_in_a_checkout_the_install_command_uses_pinned_versions(self, tmp_path, monkeypatch):
        monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
        monkeypatch.chdir(install_command.CHECKOUT)
        assert pip_command("wandb") == "pip install -c constraints.txt wandb"
        monkeypatch.chdir(tmp_path)
        words = shlex.split(pip_command("wandb", "swanlab"))
        assert Path(words[3]).is_file() and words[4:] == ["wandb", "swanlab"]

    def test_from_a_wheel_the_install_command_uses_required_versions(self, tmp_path, monkeypatch):
        monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
        monkeypatch.setattr(install_command, "CHECKOUT", tmp_path)
        stated = ["PyYAML>=6.0", 'wandb>=0.25; extra == "wandb"', 'peft<0.22,>=0.21; extra == "train"']
        monkeypatch.setattr(metadata, "requires", lambda name: stated)
        assert shlex.split(pip_command("wandb", "peft", "other")) == [
            *("pip", "install", "wandb>=0.25", "peft<0.22,>=0.21", "other")
        ]

    def test_without_an_active_environment_the_command_names_the_python(self, monkeypatch):
        monkeypatch.delenv("VIRTUAL_ENV", raising=False)
        monkeypatch.delenv("CONDA_PREFIX", raising=False)
        monkeypatch.chdir("/")
        words = shlex.split(pip_command("wandb"))
        assert Path("/", words[0]) == Path(sys.executable) and words[1:4] == ["-m", "pip", "install"]
