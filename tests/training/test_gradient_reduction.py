"""When gradients are summed over ranks, and what `auto` decides."""

import pytest
import torch

from areal_like.config.gradient_reduction import choose_reduction
from areal_like.config.sections.train_engine import FSDPEngineConfig, TrainEngineConfig
from areal_like.training.engine import TrainEngine
from tests.support.planning import plan_of
from tests.support.training_runs import make_engine, model_folder, section, weights_of
from tests.training.test_engine import mean_loss, tokens


@pytest.mark.parametrize(
    ("shards", "on_gpu", "settings", "value"),
    [
        (1, True, {}, "per_step"),
        (2, True, {}, "per_micro_batch"),
        (2, False, {}, "per_step"),
        (2, True, {"master_dtype": "bfloat16"}, "per_step"),
        (2, True, {"master_dtype": "bfloat16", "grad_reduce_dtype": "bfloat16"}, "per_micro_batch"),
    ],
)
def test_auto_shards_gradients_where_that_saves_memory_and_not_precision(shards, on_gpu, settings, value):
    config = section(TrainEngineConfig, path="", **settings)
    assert choose_reduction(config, shards, on_gpu)[0] == value
    config.fsdp.reduce_gradients = "per_step"
    assert choose_reduction(config, shards, on_gpu) == ("per_step", "as set")


def test_the_plan_says_when_gradients_are_summed():
    def resolved(*overrides: str, gpus: int) -> list[tuple[str, str]]:
        plan = plan_of("sft", *overrides, gpus=gpus)
        return [(each.value, each.reason) for each in plan.auto if each.key == "model.fsdp.reduce_gradients"]

    ((value, reason),) = resolved("model.backend=fsdp:d2", gpus=0)
    assert value == "per_step" and reason.startswith("on a CPU whole gradients")
    ((value, reason),) = resolved("model.backend=fsdp:d4", gpus=4)
    assert value == "per_micro_batch" and "1/4 of the gradients" in reason
    ((value, reason),) = resolved("model.backend=fsdp:d1", gpus=1)
    assert value == "per_step" and "shares them with no other" in reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_has_the_same_bits_either_way(tmp_path, dtype):
    def learnt(when: str) -> TrainEngine:
        fsdp = section(FSDPEngineConfig, reduce_gradients=when)
        engine = make_engine(model_folder(tmp_path / when, "qwen3"), dtype=dtype, fsdp=fsdp)
        for step in range(2):
            engine.step(step, engine.accumulate([tokens(step), tokens(step + 5), tokens(step + 9)], mean_loss))
        return engine

    one, other = (weights_of(learnt(when)) for when in ("per_micro_batch", "per_step"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
