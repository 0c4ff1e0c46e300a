"""Sweeps over real experiments through the command line."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sources.library import Library, find_config
from launcher.sweep.request import PointResult
from tests.support.sweeps import Sweep, needs_joblib, needs_optuna

REPOSITORY = Path(__file__).resolve().parents[3]

has_command = pytest.mark.skipif(
    importlib.util.find_spec("launcher.commands.sweep") is None, reason="the command line has no --multirun yet"
)


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def strictly(overrides: list[str]) -> list[Problem]:
    try:
        load("grpo.yaml", overrides)
    except ConfigError as error:
        return list(error.problems)
    return []


def learning_rate(overrides: list[str], _trial: str, _number: int) -> PointResult:
    loaded = load("grpo.yaml", overrides)
    return PointResult(
        loaded.get("actor.optimizer.lr"), {key: loaded.get(key) for key in ("trial_name", "rollout.backend")}
    )


def strict_sweep(*words: str, **more: Any) -> Sweep:
    library = Library(find_config("grpo.yaml").resolve().parent)
    groups = {group: library.options_of(group) or [] for group in library.options_of("") or []}
    return Sweep(*words, check=strictly, run=learning_rate, groups=groups, aliases=ALIASES, names=[], **more)


def test_each_point_is_composed_strictly() -> None:
    done = strict_sweep("actor.lr=1e-5,1e-4", "rollout=glob(*)", "trial_name=mine")
    assert done.code == 0
    assert [(record["objective"], record["summary"]) for record in done.records()] == [
        (lr, {"trial_name": f"r0001-{number}", "rollout.backend": backend})
        for number, (lr, backend) in enumerate(
            (lr, backend) for lr in (1e-5, 1e-4) for backend in ("embedded", "sglang", "vllm")
        )
    ]


def test_an_invalid_point_is_reported_before_any_run_starts() -> None:
    done = strict_sweep("actor.lr=1e-5,-1", "rollout=embedded,vlm", "gconfg.n_samples=3")
    assert done.code == 2
    assert not done.directories
    lines = done.err.splitlines()
    assert lines[0].startswith("every point: gconfg.n_samples [override gconfg.n_samples=3]: no such key")
    assert any(line.startswith("points 1, 3: rollout [override rollout=vlm]: ") for line in lines)
    assert any(line.startswith("points 2, 3: actor.lr [override actor.lr=-1]: ") for line in lines)
    assert lines[-1] == "3 problems; nothing was started."


@needs_joblib
@needs_optuna
def test_an_optimizing_sweep_of_a_real_experiment_in_other_processes() -> None:
    done = strict_sweep(
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=5",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.params.actor.lr=interval(1e-5,1e-4)",
        "rollout=embedded,vllm",
        "+launcher.env.GREETING=hello",
    )
    assert done.code == 0, done.err
    records = done.records()
    best = max(records, key=lambda record: record["objective"])
    assert len(records) == 5
    assert f"best: {best['trial']}, objective" in done.out
    for record in records:
        assert record["objective"] == float(record["values"]["actor.lr"])
        assert record["summary"]["rollout.backend"] == record["values"]["rollout"]


def command(*words: str, config: str = "grpo.yaml") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    line: Sequence[str] = [sys.executable, "-m", "launcher", "--config", config, *words]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)


@has_command
def test_the_command_plans_every_point() -> None:
    done = command("actor.lr=1e-5,1e-4", "--multirun", "rollout=embedded,vllm", "--dry-run")
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert head.startswith("point ")
    chosen = [row.split()[2:4] for row in rows]
    assert chosen == [["1e-05", "embedded"], ["1e-05", "vllm"], ["0.0001", "embedded"], ["0.0001", "vllm"]]
    assert "point 0: r0001-0\ngrpo: grpo-addition/r0001-0\n" in done.stdout and "point 1: " not in done.stdout
    assert "the plans of 3 other points: --dry-run=full" in done.stdout
    assert not list(Path().iterdir())


@has_command
def test_the_command_refuses_before_anything_starts() -> None:
    done = command("-m", "actor.lr=1e-5,1e-4", "gconfig.n_samples=4,no")
    assert done.returncode == 2
    assert "points 1, 3: gconfig.n_samples" in done.stderr
    assert "nothing was started" in done.stderr
    assert not list(Path().iterdir())


@has_command
@needs_joblib
@needs_optuna
def test_the_command_plans_points_of_an_optimizing_sweeper() -> None:
    words = ["hydra/launcher=joblib", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=3"]
    done = command("-m", "--dry-run", *words, "hydra.sweeper.direction=maximize", "actor.lr=interval(1e-5,1e-4)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("planned\n") == 3
    assert done.stdout.count("gets 0.0") == 1


@has_command
def test_the_command_reads_the_files_hydra_section() -> None:
    text = (REPOSITORY / "experiments" / "grpo.yaml").read_text()
    Path("mine.yaml").write_text(text + "\nhydra:\n  sweeper:\n    params:\n      actor.lr: 1e-5,1e-4\n")
    done = command("-m", "--dry-run", config="mine.yaml")
    assert done.returncode == 0 and done.stdout.count("planned\n") == 2, done.stderr
