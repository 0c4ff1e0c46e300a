"""`checkpoints/best`: which step is chosen."""

from typing import Any

import pytest

from areal_like.config.benchmarks import best_clock
from areal_like.rollout.settings import rollout_settings
from launcher.runs.best_checkpoint import best_of_steps
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


def test_without_an_evaluation_it_has_no_effect() -> None:
    warnings = plan_of("grpo", "saver.best={}", "evaluator.freq_steps=null").warnings
    assert [each for each in warnings if each.startswith("saver.best")]


def test_each_evaluated_step_is_kept_and_has_one_version() -> None:
    config = grpo("saver.best={}", "evaluator.freq_steps=7")
    assert rollout_settings(config).evaluation_pin and best_clock(config).freq_steps == 7
    items = "evaluator.benchmarks=[{name: b, path: addition, freq_steps: 3}]"
    assert best_clock(grpo("saver.best.metric=eval/b/score", items)).freq_steps == 3
