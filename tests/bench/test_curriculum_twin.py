"""The curriculum beside its plain twins: what is kept of a run, and which one is ahead."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from tests.bench import curriculum_twin as twin
from tests.bench import learning_curves

ROOT = Path(__file__).parents[2]


def simulated(case: Any, seed: int, folder: Path) -> dict[str, Any]:
    """A run of two evaluations that generated three groups, of which one was dropped. The plain one learns less."""
    directory = folder / "runs" / "experiment" / "curve"
    (directory / "rollouts").mkdir(parents=True)
    last = 0.5 if "curriculum.type=none" in case.words else 0.7
    lines = [{"step": 0, twin.METRIC: 0.4}, {"step": 5, "train/loss": 0.0}, {"step": 10, twin.METRIC: last}]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    events = [{"event": name} for name in ("started", "finished", "finished", "dropped", "finished")]
    (directory / "rollouts" / "ledger.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return {"seed": seed, "curve": [[0, 0.1]], "seconds": 1}


def test_the_scores_of_the_problems_and_the_generated_answers_of_each_twin_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning_curves, "run", simulated)
    monkeypatch.setattr(sys, "argv", ["curriculum_twin.py", "--seeds", "2", "1", "--output", str(tmp_path / "out")])
    assert twin.main() == 0
    for name, case in twin.CASES.items():
        kept = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert (kept["title"], kept["command"], [run["seed"] for run in kept["runs"]]) == (
            case.title,
            case.command,
            [1, 2],
        )
        assert all(run["answers"] == 24 and run["curve"][0] == [0, 0.4] for run in kept["runs"])
    assert "0.40 -> 0.70, 0.6 first at step 10, 24 answers" in capsys.readouterr().out


def test_the_curriculum_is_ahead_if_it_reaches_the_score_first() -> None:
    early, late, never = ({"curve": [[0, 0.4], [step, 0.6]]} for step in (10, 20, 30))
    never["curve"][1][1] = 0.59
    assert twin.is_ahead({"curriculum": early, "plain": late}) and twin.is_ahead({"curriculum": late, "plain": never})
    assert not twin.is_ahead({"curriculum": late, "plain": early})
    assert not twin.is_ahead({"curriculum": early, "plain": early})
    assert not twin.is_ahead({"curriculum": never, "plain": never})


@pytest.mark.parametrize("name", list(twin.CASES))
def test_each_twin_composes(name: str) -> None:
    file, *overrides = twin.CASES[name].words
    config = load(ROOT / "experiments" / file, overrides).config
    assert config.gconfig.n_samples == twin.SAMPLES
    assert (config.curriculum.type == "none") == (name != "curriculum")
