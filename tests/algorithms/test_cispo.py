"""CISPO's loss against a slow version."""

import math

import pytest

from tests.support.every_loss import compare_per_token


def slow(logprob: float, old: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    weight = min(max(math.exp(logprob - old), 1 - low), 1 + high)
    return -weight * advantage * logprob, -weight * advantage


@pytest.mark.parametrize("limits", [(1.0, 4.0), (0.3, 0.2)])
def test_cispo_equals_a_slow_version(limits) -> None:
    """A ratio beyond a limit keeps its token, with the weight of the limit."""
    given = {} if limits == (1.0, 4.0) else dict(zip(("eps_low", "eps_high"), limits, strict=True))
    ratios: list[float] = []

    def slow_of(*token: float) -> tuple[float, float]:
        ratios.append(math.exp(token[0] - token[1]))
        return slow(token[0], token[1], token[2], *limits)

    sums = compare_per_token("cispo", slow_of, **given)
    limited = sum(not 1 - limits[0] <= ratio <= 1 + limits[1] for ratio in ratios)
    assert (limited > 0) == (limits[1] < 1)
    assert (sums["truncated"], sums["tokens"]) == (limited, len(ratios))
