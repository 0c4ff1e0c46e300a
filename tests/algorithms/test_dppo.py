"""DPPO's loss against a slow version."""

import math

import pytest

from tests.support.every_loss import compare_per_token


def is_left_out(logprob: float, old: float, advantage: float, low: float, high: float) -> bool:
    moved = math.exp(logprob) - math.exp(old)
    return (advantage > 0 and moved > high) or (advantage < 0 and moved < -low)


def slow(logprob: float, old: float, advantage: float, low: float, high: float, tau: float) -> tuple[float, float]:
    log_ratio = logprob - old
    policy = 0.0 if is_left_out(logprob, old, advantage, low, high) else -math.exp(log_ratio) * advantage
    return policy + tau * log_ratio**2, policy + 2 * tau * log_ratio


@pytest.mark.parametrize("options", [(0.2, 0.2, 1e-3), (0.01, 0.05, 0.5)])
def test_dppo_equals_a_slow_version(options) -> None:
    given = dict(zip(("dppo_mask_low", "dppo_mask_high", "kl_tau"), options, strict=True))
    tokens: list[tuple[float, ...]] = []

    def slow_of(*token: float) -> tuple[float, float]:
        tokens.append(token)
        return slow(*token, *options)

    sums = compare_per_token("dppo", slow_of, **({} if options == (0.2, 0.2, 1e-3) else given))
    left_out = sum(is_left_out(*token, *options[:2]) for token in tokens)
    assert 0 < left_out < len(tokens)
    assert (sums["taken_out"], sums["tokens"]) == (left_out, len(tokens))
