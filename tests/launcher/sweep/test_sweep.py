"""Sweeps: points of Hydra's syntax, checks before the start, real sweepers and launchers."""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig
from hypothesis import given
from hypothesis import strategies as st

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.stop_signals import STOP_SIGNALS, handled, stop_command
from launcher.sweep.hydra_root import HydraRoot
from launcher.sweep.hydra_session import VERSION_BASE, hydra_settings
from launcher.sweep.points import SweepPoints, SweptKey
from launcher.sweep.report import numbers
from launcher.sweep.request import PointResult, hydra_parts
from launcher.sweep.run import new_sweep_directory
from tests.support.sweeps import GROUPS, Sweep, needs_joblib, needs_optuna, plan, points, positive, refused, value

pytestmark = pytest.mark.usefixtures("work_folder")


# --- which points


def test_lists_ranges_choices_and_groups_in_the_order_of_hydra() -> None:
    assert points("actor.lr=1e-5,1e-4", "seed=range(1,4,2)", "rollout=choice(embedded,vllm)") == [
        ["actor.lr=1e-05", "seed=1", "rollout=embedded"],
        ["actor.lr=1e-05", "seed=1", "rollout=vllm"],
        ["actor.lr=1e-05", "seed=3", "rollout=embedded"],
        ["actor.lr=1e-05", "seed=3", "rollout=vllm"],
        ["actor.lr=0.0001", "seed=1", "rollout=embedded"],
        ["actor.lr=0.0001", "seed=1", "rollout=vllm"],
        ["actor.lr=0.0001", "seed=3", "rollout=embedded"],
        ["actor.lr=0.0001", "seed=3", "rollout=vllm"],
    ]


def test_every_override_keeps_its_place() -> None:
    assert points("~actor.ref", "seed=1,2", "actor.path='a,b'", "+launcher.env.X=1") == [
        ["~actor.ref", "seed=1", "actor.path='a,b'", "+launcher.env.X=1"],
        ["~actor.ref", "seed=2", "actor.path='a,b'", "+launcher.env.X=1"],
    ]


def test_a_glob_takes_the_options_of_a_group() -> None:
    assert points("rollout=glob(*)") == [["rollout=embedded"], ["rollout=sglang"], ["rollout=vllm"]]
    assert points("rollout=glob(*l*,exclude=vllm)") == [["rollout=sglang"]]


def test_swept_values_keep_quotes_lists_and_maps() -> None:
    assert points("actor.path='a b','c,d'", "gconfig.stop=[1,2],[]", "actor.optimizer={lr:1},null")[::3] == [
        ["actor.path='a b'", "gconfig.stop=[1,2]", "actor.optimizer={lr:1}"],
        ["actor.path='a b'", "gconfig.stop=[]", "actor.optimizer=null"],
        ["actor.path='c,d'", "gconfig.stop=[]", "actor.optimizer={lr:1}"],
    ]


def test_tags_sorting_and_shuffling_are_hydras() -> None:
    assert points("seed=tag(a,choice(2,1))") == [["seed=2"], ["seed=1"]]
    assert points("seed=sort(3,1,2)") == [["seed=1"], ["seed=2"], ["seed=3"]]
    result = plan("seed=shuffle(range(20))").points
    assert sorted(result.swept_keys[0].values, key=int) == [str(number) for number in range(20)]
    assert result.swept_keys[0].argument == f"seed=choice({','.join(result.swept_keys[0].values)})", (
        "the sweeper shuffles no more"
    )


def test_a_sweep_may_add_map_keys_and_move_a_group() -> None:
    assert points("+launcher.env.X=1,2", "rollout@old=vllm,sglang")[1] == ["+launcher.env.X=1", "rollout@old=sglang"]


def test_no_sweep_is_one_point() -> None:
    assert points("seed=1") == [["seed=1"]]
    assert points() == [[]]


@pytest.mark.parametrize(
    "output",
    [
        {"words": ["hydra.sweeper.params.actor.lr=1e-5,1e-4"]},
        {"words": ["+hydra.sweeper.params.actor.lr='1e-5,1e-4'"]},
        {"words": ["hydra.sweeper.params={actor.lr: '1e-5,1e-4'}"]},
        {"words": [], "hydra_section": {"sweeper": {"params": {"actor.lr": "1e-5,1e-4"}}}},
    ],
)
def test_the_sweepers_own_params(output: dict[str, Any]) -> None:
    words = output.pop("words")
    assert points("seed=1", *words, **output) == [["actor.lr=1e-05", "seed=1"], ["actor.lr=0.0001", "seed=1"]]
    assert points("actor.optimizer.lr=1", *words, **output) == [["actor.optimizer.lr=1"]], (
        "the command line is stronger"
    )


@needs_optuna
def test_limits_of_the_choices_of_an_optimizing_sweeper() -> None:
    result = plan(
        "hydra/sweeper=optuna", "actor.lr=tag(log,interval(1e-5,1e-4))", "seed=range(1,6)", "rollout=vllm,sglang"
    ).points
    assert [swept_key.values for swept_key in result.swept_keys] == [
        ("1e-05", "0.0001"),
        ("1", "6"),
        ("vllm", "sglang"),
    ]
    assert result.optimizing
    assert result.swept_keys[0].argument == "actor.lr=tag(log,interval(1e-5,1e-4))"
    assert plan("hydra/sweeper=optuna", "seed=range(1,6,2)").points.swept_keys[0].values == ("1", "5")
    assert plan("hydra/sweeper=optuna", "seed=int(interval(2,2))").points.swept_keys[0].values == ("2",)
    assert plan("hydra/sweeper=optuna", "hydra.sweeper.params.seed=int(interval(1,2))").points.swept_keys[0].values == (
        "1",
        "2",
    )


@given(st.lists(st.integers(1, 4), max_size=4))
def test_points_are_numbered_like_a_product(sizes: list[int]) -> None:
    axes = [SweptKey(f"k{n}", tuple(map(str, range(size))), "") for n, size in enumerate(sizes)]
    product = list(itertools.product(*(axis.values for axis in axes)))
    result = SweepPoints(tuple(axes))
    assert len(result) == len(product)
    assert [tuple(result.values(number).values()) for number in range(len(result))] == product


@given(st.lists(st.integers(1, 9), max_size=4), st.integers(30, 60))
def test_every_value_is_checked_even_if_not_every_point_is(sizes: list[int], bound: int) -> None:
    axes = [SweptKey(f"k{n}", tuple(map(str, range(size))), "") for n, size in enumerate(sizes)]
    result = SweepPoints(tuple(axes))
    sample = result.sample(bound)
    assert len(sample) == len(set(sample)) == min(bound, len(result))
    if bound > sum(sizes):
        for axis in axes:
            assert {result.values(number)[axis.key] for number in sample} == set(axis.values)


@pytest.mark.parametrize(
    ("words", "key", "part"),
    [
        (["seed=interval(1,2)"], "seed", "hydra/sweeper=optuna"),
        (["rollout=glob(x*)"], "rollout", "it has embedded, sglang, vllm"),
        (["nothing=glob(*)"], "nothing", "not a config group"),
        (["seed=range(3,1)"], "seed", "no value"),
        (["seed=choice("], "seed", "choice("),
        (["~seed=1,2"], "seed", "cannot be deleted by a sweep"),
        (["seed=1,2", "seed=3"], "seed", "given twice"),
        (["actor.optimizer.lr=3", "actor.lr=1,2"], "actor.optimizer.lr", "given twice"),
        (["trial_name=a,b"], "trial_name", "give one name"),
        (["hydra.sweep.dir=a,b"], "hydra.sweep.dir", "cannot be swept"),
        (["hydra.job.chdir=true"], "hydra.job.chdir", "leave it false"),
        (["hydra.sweeper.max_batch=2"], "hydra.sweeper.max_batch", "not in 'BasicSweeperConf'"),
        (["hydra/sweeper=nevermind"], "hydra/sweeper", "Available options in 'hydra/sweeper': basic"),
        (["hydra.sweeper.params={seed: 1,2}"], "hydra.sweeper.params", "in quotes"),
    ],
)
def test_an_invalid_sweep_is_refused(words: list[str], key: str, part: str) -> None:
    assert part in refused(*words)[key]


def test_all_errors_are_reported_at_once() -> None:
    assert len(refused("seed=range(3,1)", "rollout=glob(x*)", "actor.lr=interval(1,2)", "n=1,2")) == 3


@needs_optuna
@pytest.mark.parametrize("direction", ["max", "[minimize,maximize]"])
def test_an_optimizing_sweeper_has_one_direction(direction: str) -> None:
    assert list(refused("hydra/sweeper=optuna", f"hydra.sweeper.direction={direction}")) == ["hydra.sweeper.direction"]


@needs_optuna
def test_an_interval_has_a_start_below_its_end() -> None:
    assert "above its end" in refused("hydra/sweeper=optuna", "seed=interval(2,1)")["seed"]


def test_a_plugin_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.sweep.hydra_session.PACKAGES", {"hydra/launcher/rocket": "hydra-rocket-launcher"})
    assert "constraints.txt hydra-rocket-launcher)" in refused("hydra/launcher=rocket")["hydra/launcher"]


def test_a_secret_is_in_no_record() -> None:
    with pytest.raises(ConfigError) as caught:
        plan("wandb.api_key=hush,hush2", "seed=1,2", is_secret=lambda key: key.endswith("api_key"))
    assert "a secret cannot be swept" in caught.value.text()
    assert "hush" not in caught.value.text()
    done = Sweep("wandb.api_key=hush", "seed=1,2")
    assert done.code == 0
    written = [path.read_text() for path in done.directories[0].rglob("*") if path.is_file()]
    assert written and "hush" not in "".join([done.out, done.printed, *written])


def test_hydra_settings_are_separated_from_the_file() -> None:
    content = {
        "defaults": ["_self_", {"actor": "tiny"}, {"override /hydra/launcher": "joblib"}, {"override rollout": "vllm"}],
        "hydra": {"sweep": {"dir": "sweeps/mine"}},
        "seed": 1,
    }
    assert hydra_parts(content) == ({"sweep": {"dir": "sweeps/mine"}}, {"hydra/launcher": "joblib"})
    assert hydra_parts({}) == ({}, {})


def test_the_roots_state_is_in_its_address() -> None:
    section = {"sweep": {"dir": "a/${now:%Y}"}, "job": {"env_set": {"GREETING": "grüß ${oc.env:HOME} {x}"}}}
    root = HydraRoot(groups=GROUPS, names=["seed"], placeholders=list(GROUPS), hydra=section)
    assert "$" not in root.address()
    with hydra_settings(root, []) as (settings, loader):
        assert settings.directory.startswith("a/2")
        assert loader.get_group_options("rollout") == ["embedded", "sglang", "vllm"]


def test_the_root_of_a_sweep_is_not_on_the_search_path_of_the_next() -> None:
    plan("seed=1,2")
    with hydra.initialize(config_path=None, **VERSION_BASE), pytest.raises(Exception, match="areal_like_sweep"):
        hydra.compose("areal_like_sweep")


# --- checked before anything starts


def test_problems_are_reported_once_with_their_points() -> None:
    def check(overrides: list[str]) -> list[Problem]:
        return [*positive(overrides), Problem("tokenizer_path", "is missing", "grpo.yaml:3")]

    done = Sweep("actor.lr=1,-1,-2", "seed=1,2,3", check=check)
    assert done.code == 2
    assert done.err.splitlines() == [
        "every point: tokenizer_path [grpo.yaml:3]: is missing",
        "points 3-5: actor.optimizer.lr [override actor.lr=-1]: must be greater than 0",
        "points 6-8: actor.optimizer.lr [override actor.lr=-2]: must be greater than 0",
        "3 problems; nothing was started.",
    ]
    assert not done.out and not done.printed and not done.directories


def test_a_sweep_that_cannot_be_read_starts_nothing() -> None:
    done = Sweep("seed=range(3,1)")
    assert done.code == 2
    problem = "seed [override seed=range(3,1)]: the sweep has no values"
    assert done.err.splitlines() == [problem, "1 problem; nothing was started."]
    assert not done.directories


@needs_optuna
def test_extreme_points_are_checked_before_an_optimizing_sweep_starts() -> None:
    done = Sweep("hydra/sweeper=optuna", "actor.lr=interval(-1,1)", "rollout=vllm,sglang", check=positive)
    assert done.code == 2
    assert done.err.startswith(
        "corner {actor.lr=-1.0 rollout=vllm}, {actor.lr=-1.0 rollout=sglang}: actor.optimizer.lr"
    )
    assert not done.directories


def test_a_limit_on_checked_points_is_reported_and_the_rest_checked_later() -> None:
    seen: list[list[str]] = []

    def check(overrides: list[str]) -> list[Problem]:
        seen.append(overrides)
        late = len(seen) > 4 and value(overrides, "seed") == 2
        return [Problem("seed", "2 is taken by now")] if late else []

    done = Sweep("seed=range(6)", check=check, checked_at_most=4)
    assert "checked: 4 of the 6 points" in done.out
    assert done.code == 1
    assert [record["state"] for record in done.records()] == ["done", "done", "refused", "done", "done", "done"]
    assert "2 is taken by now" in done.out


def test_number_ranges() -> None:
    assert numbers([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6, 7"
    assert numbers([]) == ""


# --- real sweeps


def test_jobs_get_trial_names_links_and_a_table() -> None:
    done = Sweep("seed=1,3", "rollout=glob(*l*,exclude=vllm)", "trial_name=first")
    [directory] = done.directories
    assert done.code == 0
    assert [(record["trial"], record["values"]) for record in done.records()] == [
        ("r0001-0", {"seed": "1", "rollout": "sglang"}),
        ("r0001-1", {"seed": "3", "rollout": "sglang"}),
    ]
    assert (directory / "1" / "run").resolve() == Path("runs/r0001-1").resolve()
    assert not (directory / "0" / ".hydra").exists()
    table = (directory / "table.txt").read_text().strip().splitlines()
    assert table[0].split() == ["point", "trial", "seed", "rollout", "objective", "process", "result"]
    assert table[1].split()[:5] == ["0", "r0001-0", "1", "sglang", "-2"]
    assert table[-1] in done.out
    assert "--- r0001-1: seed=3 rollout=sglang" in done.printed


def test_a_point_gets_its_own_trial_name_and_the_users_command_line() -> None:
    seen = []

    def run(overrides: list[str], trial: str, number: int) -> PointResult:
        seen.append((overrides, trial, number, list(sys.argv)))
        return PointResult()

    Sweep("trial_name=first", "seed=1,2", "~actor.ref", run=run)
    assert seen[1] == (["seed=2", "~actor.ref", "trial_name=r0001-1"], "r0001-1", 1, sys.argv)


def test_a_point_composes_for_itself_inside_of_hydras_job() -> None:
    def run(_overrides: list[str], _trial: str, _number: int) -> PointResult:
        assert not HydraConfig.initialized()
        with hydra.initialize(config_path=None, **VERSION_BASE):
            assert hydra.compose(overrides=["+a=1"]).a == 1
        return PointResult(1.0)

    assert Sweep("seed=1,2", run=run).code == 0


def test_a_point_that_fails_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    done = Sweep("seed=13,3", "hydra.sweeper.max_batch_size=1")
    assert done.code == 1
    assert [record["state"] for record in done.records()] == ["failed", "done"]
    assert "failed: RuntimeError: unlucky" in done.out
    assert "in run_seed" in capsys.readouterr().err, "the traceback"


@pytest.mark.parametrize(("code", "state"), [(75, "stopped early"), (130, "interrupted")])
def test_a_stopped_run_stops_the_sweep(code: int, state: str) -> None:
    done = Sweep("seed=1,2,3,4", run=lambda _overrides, _trial, number: PointResult(exit_code=code if number else 0))
    assert done.code == code
    assert [record["state"] for record in done.records()] == ["done", state]
    assert "not started: points 2, 3" in done.out


def test_ctrl_c_ends_with_the_table() -> None:
    def run(_overrides: list[str], _trial: str, number: int) -> PointResult:
        if number:
            raise KeyboardInterrupt
        return PointResult(1.0)

    done = Sweep("seed=1,2,3", run=run)
    assert done.code == 130
    assert "interrupted" in done.out and "not started: point 2" in done.out


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_between_points_ends_with_the_table(number: signal.Signals) -> None:
    def run(_overrides: list[str], _trial: str, point: int) -> PointResult:
        if point:
            signal.raise_signal(number)
        return PointResult(1.0)

    with handled(STOP_SIGNALS, stop_command):
        done = Sweep("seed=1,2,3", run=run)
    assert done.code == 75
    assert [record["state"] for record in done.records()] == ["done", "stopped early"]
    assert "not started: point 2" in done.out


@pytest.mark.parametrize("code", [75, 130])
def test_a_stop_that_came_when_its_point_had_ended_ends_the_sweep(code: int) -> None:
    done = Sweep("seed=1,2", run=lambda _overrides, _trial, _number: PointResult(1.0, stop_code=code))
    assert done.code == code
    assert [record["state"] for record in done.records()] == ["done"] and "not started: point 1" in done.out


def test_other_endings_of_a_run_are_in_the_table() -> None:
    def run(_overrides: list[str], _trial: str, number: int) -> PointResult:
        if number == 0:
            return PointResult(exit_code=1)
        if number == 1:
            raise SystemExit(3)
        raise ConfigError([Problem("rollout", "cannot start here")])

    done = Sweep("seed=1,2,3", run=run)
    assert done.code == 1
    assert [record["state"] for record in done.records()] == ["failed", "failed", "refused"]
    assert [record["message"] for record in done.records()] == [
        "exit code 1",
        "it exited with 3",
        "rollout: cannot start here",
    ]


def test_a_job_is_linked_to_its_run_before_it_starts() -> None:
    def run(_overrides: list[str], trial: str, number: int) -> PointResult:
        [job] = Path("multirun").glob(f"*/*/{number}")
        assert (job / "run").resolve() == Path("elsewhere", trial).resolve()
        return PointResult()

    assert Sweep("seed=1,2", run=run, run_dir=lambda _overrides, trial: Path("elsewhere", trial)).code == 0


def test_the_files_hydra_section_applies_below_the_command_line() -> None:
    section = {"sweep": {"dir": "mine"}, "job": {"env_set": {"SWEEP_GREETING": "hello"}}}
    seen = []

    def run(_overrides: list[str], _trial: str, _number: int) -> PointResult:
        seen.append(os.environ.get("SWEEP_GREETING"))
        return PointResult()

    assert Sweep("seed=1,2", run=run, hydra_section=section).code == 0
    assert Sweep("seed=1,2", 'hydra.sweep.dir="it\'s mine"', run=run, hydra_section=section).code == 0
    assert seen == ["hello"] * 4
    assert Path("mine/1/point.json").exists() and Path("it's mine/1/point.json").exists()


def test_two_sweeps_do_not_mix() -> None:
    for _ in range(2):
        assert Sweep("seed=1", "hydra.sweep.dir=mine", run=lambda *_: PointResult()).code == 0
    assert Path("mine/0/point.json").exists() and Path("mine-2/0/point.json").exists()
    Path("empty").mkdir()
    assert new_sweep_directory(Path("empty")) == Path("empty")
    assert new_sweep_directory(Path("mine")) == Path("mine-3")


def test_quiet_prints_nothing() -> None:
    done = Sweep("seed=1,2", quiet=True)
    assert (done.code, done.out, done.printed) == (0, "", "")


@needs_joblib
def test_joblib_runs_jobs_in_other_processes() -> None:
    done = Sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2,13", "rollout=glob(*)", check=positive)
    assert done.code == 1
    records = done.records()
    assert [record["state"] for record in records] == ["done"] * 6 + ["failed"] * 3
    assert os.getpid() not in {record["summary"].get("process") for record in records}
    assert done.out.count("unlucky") == 3


@needs_optuna
def test_optuna_uses_the_objective() -> None:
    done = Sweep(
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=12",
        "hydra.sweeper.direction=maximize",
        "hydra/sweeper/sampler=grid",
        "seed=range(1,6)",
    )
    assert done.code == 0
    records = done.records()
    assert {record["values"]["seed"] for record in records} == {"1", "2", "3", "4", "5"}
    best = next(record for record in records if record["values"]["seed"] == "3")
    assert f"best: {best['trial']}, objective 0" in done.out
    [directory] = done.directories
    assert "best_value: -0.0" in (directory / "optimization_results.yaml").read_text()
    assert "to maximize the objective" in done.out


@needs_joblib
@needs_optuna
def test_optuna_and_joblib_together() -> None:
    done = Sweep(
        "hydra/launcher=joblib",
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=5",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.params.seed=int(interval(1,6))",
        "rollout=glob(*)",
        "gconfig.top_p=interval(0.5,1.0)",
    )
    assert done.code == 0
    assert [record["number"] for record in done.records()] == [0, 1, 2, 3, 4]
    assert os.getpid() not in {record["summary"]["process"] for record in done.records()}


@needs_optuna
def test_an_optimizing_sweeper_decides_how_many_points_may_fail(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=1"]
    done = Sweep(*words, "seed=choice(13)")
    assert (done.code, len(done.records())) == (1, 1)
    assert "hydra/sweeper=optuna stopped after 1 points (hydra.sweeper.max_failure_rate=0.0" in done.out
    assert "r0001-0 failed: RuntimeError: unlucky" in capfd.readouterr().err


@needs_optuna
def test_an_optimizing_sweeper_needs_an_objective(capfd: pytest.CaptureFixture[str]) -> None:
    done = Sweep("hydra/sweeper=optuna", "seed=1,2", run=lambda *_: PointResult(float("nan")))
    assert done.code == 1
    assert "the objective is nan" in done.out
    assert "the objective is nan" in capfd.readouterr().err


@needs_optuna
def test_each_point_of_an_optimizing_sweeper_is_checked_again(capfd: pytest.CaptureFixture[str]) -> None:
    def check(overrides: list[str]) -> list[Problem]:
        between = 0 < value(overrides, "seed") < 1
        return [Problem("seed", "no fractions")] if between else []

    done = Sweep("hydra/sweeper=optuna", "seed=interval(0.0,1.0)", "hydra.sweeper.n_jobs=1", check=check)
    assert done.code == 1
    assert [record["state"] for record in done.records()] == ["refused"]
    assert "no fractions" in capfd.readouterr().err
