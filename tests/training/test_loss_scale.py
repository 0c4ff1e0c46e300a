"""Loss scaling in float16."""

import logging
import math
from typing import Any

import pytest
import torch

from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.process.errors import Failure
from areal_like.training.loss_scale import LossScale, make_scale
from areal_like.training.optimizer_step import OptimizerStep, optimizer_metrics
from areal_like.training.resume_state import engine_scalars
from tests.support.training_runs import make_engine, model_folder, section, weights_of
from tests.training.test_engine import mean_loss, tokens

HALF: dict[str, Any] = {"dtype": "float16", "initial_loss_scale": 1024.0}


def values(scale: LossScale, outcomes: str) -> list[float]:
    """The scale after each step: `.` is finite, `x` an overflow."""
    actual = []
    for letter in outcomes:
        scale.good() if letter == "." else scale.overflow()
        actual.append(scale.value)
    return actual


def test_the_scale_doubles_after_a_window_which_an_overflow_restarts():
    assert values(LossScale(8, 1, window=3, hysteresis=2), ".....x..") == [8, 8, 16, 16, 16, 16, 16, 16]
    assert values(LossScale(8, 1, window=3, hysteresis=2), "..x...") == [8, 8, 8, 8, 8, 16]


def test_the_scale_halves_after_hysteresis_overflows():
    assert values(LossScale(64, 1, window=2, hysteresis=1), "xx") == [32, 16]
    assert values(LossScale(64, 1, window=2, hysteresis=3), "xxxx") == [64, 64, 32, 16]
    assert values(LossScale(64, 1, window=2, hysteresis=2), "xx.x..x") == [64, 32, 32, 16, 16, 32, 32]


def test_the_loss_scale_never_falls_below_its_minimum():
    scale = LossScale(8, 3, window=5, hysteresis=1)
    assert values(scale, "xxx") == [4, 3, 3]
    assert not scale.can_decrease


def test_a_restored_loss_scale_continues():
    first, second = (LossScale(64, 1, window=3, hysteresis=2) for _ in range(2))
    values(first, ".x.")
    second.restore(first.state())
    assert values(first, "x...") == values(second, "x...")


@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_other_precisions_have_no_loss_scale(dtypes):
    scale = make_scale(section(OptimizerConfig), *dtypes)
    assert values(scale, "...xxx...") == [1.0] * 9


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("bfloat16", "float16")])
def test_loss_scaling_is_used_with_float16_compute_or_reduction(dtypes):
    assert make_scale(section(OptimizerConfig), *dtypes).value == 2.0**32


def test_a_model_in_float16_learns_like_one_in_full_precision(tmp_path):
    folder = model_folder(tmp_path, "qwen3")

    def losses(**settings) -> list[float]:
        engine = make_engine(folder, lr=0.003, **settings)
        return [engine.step(step, engine.accumulate([tokens()], mean_loss)).loss for step in range(8)]

    full, half = losses(), losses(**HALF)
    assert half[-1] < half[0] - 1
    assert half == pytest.approx(full, rel=0.02)


def test_the_scale_changes_only_the_rounding_of_the_gradient(tmp_path):
    folder, updates, weights = model_folder(tmp_path, "qwen3"), [], []
    for initial in (1.0, 4096.0):
        engine = make_engine(folder, initial_loss_scale=initial, grad_reduce_dtype="float16", type="sgd", momentum=0.0)
        updates.append(engine.step(0, engine.accumulate([tokens()], mean_loss)))
        weights.append(weights_of(engine))
    assert updates[1].grad_norm == pytest.approx(updates[0].grad_norm, rel=1e-3)
    assert updates[1].loss_scale == 4096
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=1e-5, rtol=1e-3, msg=name)


def test_overflow_steps_change_nothing_and_do_not_count_as_skipped(tmp_path, caplog):
    engine = make_engine(model_folder(tmp_path, "qwen3"), dtype="float16", hysteresis=1, max_skipped_in_a_row=1)
    before = weights_of(engine)
    updates: list[OptimizerStep] = []
    with caplog.at_level(logging.WARNING):
        while not updates or updates[-1].is_overflow:
            assert engine.consecutive_skips == 0
            if updates:
                assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(engine).items())
            updates.append(engine.step(len(updates), engine.accumulate([tokens()], mean_loss)))
    assert len(updates) > 5 and not updates[-1].is_skipped
    assert [update.loss_scale for update in updates] == [2.0 ** (32 - number) for number in range(len(updates))]
    assert caplog.text == ""


def test_a_nonfinite_loss_is_a_skipped_update_and_no_overflow(tmp_path):
    engine = make_engine(model_folder(tmp_path, "qwen3"), max_skipped_in_a_row=2, **HALF)
    update = engine.step(0, torch.tensor(math.nan))
    assert update.is_skipped and not update.is_overflow
    with pytest.raises(Failure, match="2 updates in a row"):
        engine.step(1, torch.tensor(math.nan))


def test_an_overflow_at_the_minimum_scale_counts_as_a_skipped_update(tmp_path):
    engine = make_engine(
        model_folder(tmp_path, "qwen3"), dtype="float16", initial_loss_scale=2.0**40, min_loss_scale=2.0**40
    )
    update = engine.step(0, engine.accumulate([tokens()], mean_loss))
    assert update.is_skipped and not update.is_overflow and engine.consecutive_skips == 1


def test_overflows_are_counted_separately_and_their_norms_omitted():
    good, overflow = (
        OptimizerStep(1.0, 2.0, 0.1, False, False, 8.0),
        OptimizerStep(1.0, math.inf, 0.1, True, True, 16.0),
    )
    broken = OptimizerStep(math.nan, math.nan, 0.1, True, False, 8.0)
    assert optimizer_metrics("train", [overflow, good]) == {
        "train/loss": 1.0,
        "train/grad_norm": 2.0,
        "train/lr": 0.1,
        "train/updates": 1.0,
        "train/skipped_updates": 0.0,
        "train/overflows": 1.0,
        "train/loss_scale": 8.0,
    }
    assert optimizer_metrics("critic", [broken])["critic/skipped_updates"] == 1.0
    assert "train/loss_scale" not in optimizer_metrics("train", [good._replace(loss_scale=1.0)])


def test_the_loss_scale_is_in_the_checkpoint(tmp_path):
    engine = make_engine(model_folder(tmp_path, "qwen3"), loss_scale_window=1, **HALF)
    engine.step(0, engine.accumulate([tokens()], mean_loss))
    assert engine_scalars(engine)["loss_scale"]["value"] == 2048
