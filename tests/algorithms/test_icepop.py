"""IcePop's group against a slow version."""

import math

import pytest

from tests.support.every_loss import compare_per_token
from tests.support.planning import loaded


def slow(logprob: float, old: float, advantage: float, proximal: float) -> tuple[float, float]:
    """The clipped loss against the start of the step, times its ratio to the sampler within [0.5, 5]."""
    ratio, mismatch = math.exp(logprob - proximal), math.exp(proximal - old)
    if not 0.5 <= mismatch <= 5:
        return 0.0, 0.0
    clipped = min(max(ratio, 0.8), 1.28)
    is_clipped = ratio * advantage > clipped * advantage
    loss = -advantage * (clipped if is_clipped else ratio) * mismatch
    return loss, 0.0 if is_clipped else loss


def test_the_group_icepop_equals_a_slow_version() -> None:
    actor = loaded("grpo", "algorithm=icepop").config.actor
    keys = ("use_decoupled_loss", "behav_imp_weight_floor", "behav_imp_weight_cap", "behav_imp_weight_mode")
    options = {key: getattr(actor, key) for key in (*keys, "behav_imp_weight_level", "eps_clip", "eps_clip_higher")}
    mismatches: list[float] = []

    def slow_of(*token: float) -> tuple[float, float]:
        logprob, old, advantage, proximal = token
        mismatches.append(proximal - old)
        return slow(logprob, old, advantage, proximal)

    sums = compare_per_token(actor.loss, slow_of, "proximal", **options)
    left_out = sum(not 0.5 <= math.exp(each) <= 5 for each in mismatches)
    assert 0 < left_out < len(mismatches)
    assert (sums["taken_out"], sums["tokens"]) == (left_out, len(mismatches))
    assert (actor.eps_clip, actor.eps_clip_higher) == pytest.approx((0.2, 0.28))
