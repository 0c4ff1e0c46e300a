"""The experiments with tiny models learn: their kept curves, and (slow) one seed by the real command."""

from pathlib import Path

import pytest

from docs.make.results_page import EXPERIMENTS, charts, read_results
from tests.bench import experiment_curves as curves
from tests.bench.experiment_curves import CASES
from tests.bench.learning_curves import rises


def test_the_kept_curves_are_of_every_such_experiment_and_rise_with_every_seed() -> None:
    assert [file.stem for file in sorted(EXPERIMENTS.glob("*.json"))] == list(CASES)
    for result, case in zip(read_results(EXPERIMENTS), CASES.values(), strict=True):
        assert (result["title"], result["command"]) == (case.title, case.command)
        assert all(run["commit"] and run["date"] and rises(run["curve"]) for run in result["runs"])


def test_each_has_a_chart_with_a_line_for_each_seed() -> None:
    for (path, text), result in zip(charts(EXPERIMENTS).items(), read_results(EXPERIMENTS), strict=True):
        assert path.suffix == ".svg" and text.count("<polyline") == len(result["runs"])


@pytest.mark.slow
@pytest.mark.xdist_group("ring-1")
@pytest.mark.parametrize("name", CASES)
def test_every_experiment_learns(name: str, tmp_path: Path) -> None:
    actual = curves.run(name, 1, tmp_path)["curve"]
    assert rises(actual), actual
