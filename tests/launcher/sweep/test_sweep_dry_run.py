"""A dry run of a sweep plans every point and starts nothing."""

from pathlib import Path

import pytest

from launcher.sweep.request import PointResult
from tests.support.sweeps import Sweep, needs_joblib, needs_optuna

pytestmark = pytest.mark.usefixtures("work_folder")


def planned(overrides: list[str], _trial: str, _number: int) -> PointResult:
    print("the plan of", *overrides)
    return PointResult()


def test_a_dry_run_plans_every_point_and_leaves_nothing() -> None:
    done = Sweep("seed=1,2", "rollout=glob(*)", run=planned, dry_run=True)
    assert done.code == 0
    assert done.printed.count("the plan of") == 6
    assert done.out.count("planned\n") == 6
    assert "nothing is started" in done.out
    assert not list(Path().iterdir())


@needs_joblib
@needs_optuna
def test_a_dry_run_uses_the_sweeper_but_no_launcher_or_storage() -> None:
    done = Sweep(
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=5",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.storage=sqlite:///study.db",
        "seed=interval(1,9)",
        run=planned,
        dry_run=True,
    )
    assert done.code == 0
    assert done.printed.count("the plan of") == 5, "in this process, where they can be seen in order"
    assert done.out.count("the sweeper gets 0.0") == 1
    assert "a start uses hydra/launcher=joblib" in done.out
    assert not list(Path().iterdir())


@needs_joblib
def test_a_dry_run_of_a_file_that_chooses_a_launcher() -> None:
    section = {"launcher": {"n_jobs": 2}}
    done = Sweep(
        "seed=1,2", run=planned, dry_run=True, hydra_section=section, hydra_choices={"hydra/launcher": "joblib"}
    )
    assert done.code == 0
    assert done.printed.count("the plan of") == 2
