"""`checkpoints/best`: which step is chosen."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from areal_like.config.benchmarks import best_clock
from areal_like.process.run import Run
from areal_like.rollout.settings import rollout_settings
from launcher.runs.best_checkpoint import best_of_steps, best_warning
from tests.support.planning import plan_of
from tests.support.rollout_world import grpo

LINES: list[dict[str, Any]] = [
    {"step": 0, "eval/score": 0.9},
    {"step": 2, "eval/score": 0.4},
    {"step": 4, "eval/score": 0.6},
    {"step": 6, "eval/score": 0.6},
    {"step": 8, "eval/score": None},
    {"step": 9, "eval/score": 0.8},
    {"step": 6, "eval/b/score": 0.1},
]


@pytest.mark.parametrize(
    ("metric", "mode", "step"),
    [("eval/score", "max", 4), ("eval/score", "min", 2), ("eval/b/score", "max", 6), ("eval/c/score", "max", None)],
)
def test_the_best_step_is_the_first_of_those_with_a_checkpoint(metric: str, mode: str, step: int | None) -> None:
    best = best_of_steps(LINES, metric, mode, [2, 4, 6, 8])
    assert (best and best.step) == step


def test_a_metric_that_was_never_logged_is_named_at_the_end(tmp_path: Path) -> None:
    config = grpo("saver.best.metric='eval/part/corect'")
    run = SimpleNamespace(directory=tmp_path, checkpoints=tmp_path / "none", config=config)
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 2, "eval/score": 0.4, "eval/part/correct": 0.1}\n')
    line = best_warning(cast(Run, run))
    assert line is not None and "eval/part/corect was never logged" in line and "mean eval/part/correct?" in line
    file.write_text('{"step": 2, "eval/score": 0.4, "eval/part/corect": null}\n')
    assert best_warning(cast(Run, run)) is None


def test_evaluated_steps_without_a_checkpoint_are_named_at_the_end(tmp_path: Path) -> None:
    run = SimpleNamespace(directory=tmp_path, checkpoints=tmp_path / "none", config=grpo("saver.best={}"))
    values = {0: 0.1, 4: 0.2, 7: 0.3}
    lines = [f'{{"step": {step}, "eval/score": {value}}}\n' for step, value in values.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert best_warning(cast(Run, run)) == (
        "warning: saver.best: 2 evaluated steps have no checkpoint (4, 7) and cannot be the best"
    )


def test_evaluations_that_may_begin_late_are_a_warning() -> None:
    words = ("saver.best={}", "evaluator.freq_steps=5", "rollout.backend=embedded:d1")
    late = (
        "uses later weights (evaluator.backend), which have no checkpoint and cannot be the best; set a longer interval"
    )
    found = [plan_of("grpo", *words, *more).warnings for more in ((), ("evaluator.backend=embedded:d1",))]
    assert [any(late in each for each in warnings) for warnings in found] == [False, True]


def test_without_an_evaluation_it_has_no_effect() -> None:
    warnings = plan_of("grpo", "saver.best={}", "evaluator.freq_steps=null").warnings
    assert [each for each in warnings if each.startswith("saver.best")]


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("eval/sum/score", "no benchmark is called sum; did you mean eval/sums/score?"),
        ("eval/sums", "eval/sums is a benchmark; did you mean eval/sums/score?"),
        ("eval/scores", "no evaluation has a metric scores; did you mean eval/score?"),
        ("eval/env/countdwn", "no environment is called countdwn; did you mean eval/env/countdown?"),
        ("eval/sums/score", ""),
        ("eval/sums/pass@2", ""),
        ("eval/sums/pass@6_low", ""),
        ("eval/sums/pass@3", "eval/sums/pass@3 is given for no evaluation: each row has 6 answers (n_samples)"),
        ("eval/avg@6", "eval/avg@6 is given for no evaluation: each row has one answer (n_samples)"),
        ("eval/score_low", ""),
        ("eval/score", ""),
        ("eval/env/countdown", ""),
        ("eval/part/format", ""),
    ],
)
def test_the_metric_is_one_of_an_evaluation_that_there_is(metric: str, problem: str) -> None:
    items = "evaluator.benchmarks=[{name: sums, path: addition, freq_steps: 3, n_samples: 6}]"
    trained = (
        "environments.train=[{id: countdown}, {id: addition}]",
        "task.name=null",
        "train_dataset.path=''",
        "valid_dataset.path=''",
    )
    found = plan_of("grpo", f"saver.best.metric='{metric}'", items, *trained).cannot_start
    assert [each.message for each in found if each.key == "saver.best.metric"] == ([problem] if problem else [])


def test_each_evaluated_step_is_kept_and_has_one_version() -> None:
    config = grpo("saver.best={}", "evaluator.freq_steps=7")
    assert rollout_settings(config).evaluation_pin and best_clock(config).freq_steps == 7
    items = "evaluator.benchmarks=[{name: b, path: addition, freq_steps: 3}]"
    assert best_clock(grpo("saver.best.metric=eval/b/score", items)).freq_steps == 3
