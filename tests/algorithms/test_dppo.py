"""DPPO's loss against a slow version."""

import math

import pytest

from tests.support.every_loss import compare_per_token


def slow(logprob: float, old: float, advantage: float, low: float, high: float, tau: float) -> tuple[float, float]:
    moved, log_ratio = math.exp(logprob) - math.exp(old), logprob - old
    is_left_out = (advantage > 0 and moved > high) or (advantage < 0 and moved < -low)
    policy = 0.0 if is_left_out else -math.exp(log_ratio) * advantage
    return policy + tau * log_ratio**2, policy + 2 * tau * log_ratio


@pytest.mark.parametrize("options", [(0.2, 0.2, 1e-3), (0.01, 0.05, 0.5)])
def test_dppo_equals_a_slow_version(options) -> None:
    given = dict(zip(("dppo_mask_low", "dppo_mask_high", "kl_tau"), options, strict=True))
    sums = compare_per_token(
        "dppo", lambda *token: slow(*token, *options), **({} if options == (0.2, 0.2, 1e-3) else given)
    )
    assert 0 < sums["taken_out"] < sums["tokens"]
