"""The experiments that fit a CPU learn: their kept curves, and (slow) one seed by the real command. Starts are
made by the recorded commands."""

import json
import shlex
from pathlib import Path

import pytest

from areal_like.config.load import load
from areal_like.data.tasks import TEST, make_task
from areal_like.data.user_code import SearchFolders
from areal_like.models import missing_weights_hint, model_folder
from docs.make.results_page import EXPERIMENTS, charts, read_results
from tests.bench import experiment_curves as curves
from tests.bench.experiment_curves import CASES
from tests.bench.learning_curves import keep, rises
from tests.ring.start import run
from tests.support.answer_knowledge import answer_chance
from tests.support.commands import REPOSITORY
from tests.support.sandboxes import require_sandbox

FIGURES = REPOSITORY / "build" / "experiments"
STARTS = {
    "tiny-countdown": "countdown.yaml",
    "tiny-problems": "gsm_symbolic.yaml",
    "tiny-programs": "code.yaml",
    "tiny-puzzles": "reasoning_gym.yaml",
    "tiny-tools": "tools.yaml",
}
"""Built-in model -> an experiment that starts from it."""


def test_the_kept_curves_are_of_every_such_experiment_and_rise_with_every_seed() -> None:
    assert [file.stem for file in sorted(EXPERIMENTS.glob("*.json"))] == list(CASES)
    for result, case in zip(read_results(EXPERIMENTS), CASES.values(), strict=True):
        assert (result["title"], result["command"]) == (case.title, case.command)
        assert all(run["commit"] and run["date"] and rises(run["curve"]) for run in result["runs"])
        assert len(result["runs"]) >= 3, case.title
        assert not [run["seed"] for run in result["runs"] if "with changes" in run["commit"]], "others can repeat it"


def test_each_has_a_chart_with_a_line_for_each_seed() -> None:
    for (path, text), result in zip(charts(EXPERIMENTS).items(), read_results(EXPERIMENTS), strict=True):
        assert path.suffix == ".svg" and text.count("<polyline") == len(result["runs"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.timeout(case.limit_s + 600)) for name, case in CASES.items()],
)
def test_every_experiment_learns(name: str, tmp_path: Path) -> None:
    if name == "code":
        require_sandbox("bubblewrap")
    if name == "smollm2_grpo" and (hint := missing_weights_hint(load("smollm2_grpo.yaml").get("actor.path"))):
        pytest.skip(hint)  # `.ci/run --full` downloads it
    result = curves.run(name, 1, tmp_path)
    FIGURES.mkdir(parents=True, exist_ok=True)
    keep(FIGURES / f"{name}.json", CASES[name], result)
    assert rises(result["curve"]), result["curve"]


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.parametrize("model", STARTS)
def test_the_recorded_command_makes_a_start_that_knows_as_much(model: str, tmp_path: Path) -> None:
    shipped, experiment = model_folder(f"builtin:{model}"), load(STARTS[model])
    _, _, _, _, config, *words = shlex.split(json.loads((shipped / "origin.json").read_text())["command"])
    made = run(tmp_path, *words, config=config, limit_s=1800)
    assert made.code == 0, made.text
    places = SearchFolders(tmp_path, tmp_path)
    if experiment.get("environments.train"):  # of several tasks
        experiment = load(config, words)
    rows = make_task(experiment.get("task.name"), experiment.get("task.args"), places).rows(TEST)[:300]
    for text in experiment.get("train_dataset.remove_text"):
        rows = [{**row, "prompt": row["prompt"].replace(text, "")} for row in rows]
    chance, chance_of_shipped = (answer_chance(folder, rows) for folder in (made.model(), shipped))
    assert 0.01 < chance_of_shipped / 2 < chance < 2 * chance_of_shipped
