"""Warnings of a plan about what does not fit, and about learning rates of a much smaller model."""

import pytest

from tests.launcher.plan.test_micro_batch_limit import LIMIT, QWEN, RECOMPUTE, machine
from tests.support.planning import plan_of


def warned(plan, key):
    return [warning for warning in plan.warnings if warning.startswith(f"{key}:")]


def test_models_that_do_not_fit_come_with_ways_that_make_them_fit():
    words = ("actor=qwen2_5_1_5b", "gconfig.max_new_tokens=1024")
    (warning,) = warned(plan_of("grpo", *words, host=machine(24)), "actor.backend")
    assert "of a GPU's 24.0 GiB beside the server's" in warning and "actor.optimizer.offload=true" not in warning
    ways = warning.partition("; set ")[2].partition(", or use")[0].split(" or ")
    assert "actor.use_lora=true" in ways
    for way in ways:
        followed = plan_of("grpo", *words, *way.split(), host=machine(24))
        assert not warned(followed, "actor.backend") and not warned(followed, LIMIT), way


def test_a_rank_that_fits_only_without_context_and_reserve_is_a_warning():
    """Of 24 GiB a rank with actor and critic needs 19, beside a server with 3.5."""
    (warning,) = warned(plan_of("ppo", "actor=qwen3_0_6b", host=machine(24)), "actor.backend")
    assert "actor.optimizer.offload=true critic.optimizer.offload=true" in warning


def test_a_warning_does_not_name_what_is_done_already():
    (warning,) = warned(plan_of("grpo", *QWEN, f"{LIMIT}=300000", host=machine(24)), LIMIT)
    assert RECOMPUTE not in warning and "lower it to" in warning


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((f"{LIMIT}=100000", f"{RECOMPUTE}=false"), "a micro-batch of 100,000 tokens takes"),
        ((f"{LIMIT}=null", f"{RECOMPUTE}=false"), "null, and a minibatch of 135,168 tokens takes 257 GiB"),
    ],
)
def test_written_micro_batches_that_do_not_fit_are_a_warning(words, what):
    (warning,) = warned(plan_of("grpo", *QWEN, *words, host=machine(80, 8)), LIMIT)
    assert what in warning and "actor.gradient_checkpointing=true" in warning


def test_micro_batches_that_fit_are_no_warning():
    assert not warned(plan_of("grpo", *QWEN, host=machine(80, 8)), LIMIT)
    assert not warned(plan_of("grpo", *QWEN, f"{LIMIT}=null"), LIMIT)


def test_a_learning_rate_of_a_tiny_model_is_a_warning_for_a_large_one():
    rate = "actor.optimizer.lr"
    words = ("actor.path=Qwen/Qwen3-0.6B", "actor.dtype=bfloat16")
    (warning,) = warned(plan_of("grpo", *words, gpus=2), rate)
    assert "0.0003 is high for a model of 596 M parameters" in warning
    assert not warned(plan_of("grpo", *words, "actor.use_lora=true", gpus=2), rate)
    assert not warned(plan_of("grpo", "actor=qwen3_0_6b", gpus=2), rate)
    assert not warned(plan_of("grpo", gpus=2), rate)
    assert warned(plan_of("ppo", "actor=qwen3_0_6b", gpus=2), "critic.optimizer.lr")
    assert not warned(plan_of("ppo", "actor=qwen3_0_6b", "critic=qwen3_0_6b", gpus=2), "critic.optimizer.lr")
