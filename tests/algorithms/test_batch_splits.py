"""The gradient of a batch does not depend on its split into micro-batches and ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_like.algorithms.aggregation import AGGREGATIONS, denominator, token_weights
from areal_like.algorithms.losses import pairwise
from areal_like.algorithms.packed import lengths
from areal_like.algorithms.statistics import Statistics
from tests.support.every_loss import EVERY, FIXED_LENGTH, compute, draw_tokens, gradients, part_of, share
from tests.support.every_loss import with_gradient as learnt

MOST_PARTS = 4

sizes_and_places = st.lists(st.tuples(st.integers(0, 9), st.integers(0, MOST_PARTS - 1)), min_size=1, max_size=7)
"""The length of each sequence, and the micro-batch (of whichever rank) that it comes into."""


def joined(parts: list[Statistics]) -> Statistics:
    """As ranks and micro-batches are put together."""
    sums = {name: torch.stack([part.sums[name] for part in parts]).sum() for name in parts[0].sums}
    return Statistics(
        sums, {name: torch.stack([part.maxima[name] for part in parts]).max() for name in parts[0].maxima}
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", EVERY)
@share(25)
@given(drawn=sizes_and_places)
def test_any_split_gives_the_same_loss_gradient_and_statistics(loss, aggregation, drawn) -> None:
    sizes = [size for size, _ in drawn]
    cut = [[row for row, (_, place) in enumerate(drawn) if place == number] for number in range(MOST_PARTS)]
    tokens = learnt(draw_tokens(sizes))

    def part(rows: list[int]) -> tuple[torch.Tensor, float, Statistics]:
        """Each rank knows its own sequences alone, and says its share of the denominator."""
        own, cu = part_of(tokens, sizes, rows)
        actual = compute(loss, own, cu, token_weights(aggregation, own["mask"], cu))
        return actual.total, denominator(aggregation, own["mask"], cu, FIXED_LENGTH), actual.statistics

    whole, count, statistics = part(list(range(len(sizes))))
    totals, counts, parts_statistics = zip(*(part(rows) for rows in cut), strict=True)
    assert sum(counts) == count
    together, alone = torch.stack(totals).sum() / max(count, 1.0), whole / max(count, 1.0)
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)
    for in_parts, at_once in zip(gradients(together, tokens), gradients(alone, tokens), strict=True):
        torch.testing.assert_close(in_parts, at_once, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(joined(list(parts_statistics)), statistics, atol=1e-5, rtol=1e-5)


@share(6)
@given(places=st.lists(st.integers(0, MOST_PARTS - 1), min_size=1, max_size=9))
def test_any_split_of_pairs_gives_the_same_loss_and_gradient(places) -> None:
    scores = torch.randn(2, len(places), requires_grad=True)
    whole = pairwise(*scores)
    cut = [torch.tensor([at for at, place in enumerate(places) if place == part]) for part in range(MOST_PARTS)]
    parts = [pairwise(*scores[:, rows.long()]) for rows in cut]
    together = torch.stack([part.total for part in parts]).sum()
    torch.testing.assert_close(together, whole.total)
    for one, other in zip(torch.autograd.grad(together, scores), torch.autograd.grad(whole.total, scores), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(joined([part.statistics for part in parts]), whole.statistics)


@pytest.mark.parametrize(
    ("aggregation", "weights", "count"),
    [
        ("token_mean", [1, 1, 0, 1, 0, 0], 3),
        ("sequence_mean_token_sum", [1, 1, 0, 1, 0, 0], 2),
        ("sequence_mean_token_mean", [0.5, 0.5, 0, 1, 0, 0], 2),
        ("fixed_length", [1, 1, 0, 1, 0, 0], 14),
    ],
)
def test_aggregations_have_the_known_token_weights_and_denominators(aggregation, weights, count) -> None:
    mask, cu = torch.tensor([1, 1, 0, 1, 0, 0]), torch.tensor([0, 3, 4, 4, 6])  # the last sequence has none in the loss
    assert token_weights(aggregation, mask, cu).tolist() == weights
    assert denominator(aggregation, mask, cu, FIXED_LENGTH) == count
    assert lengths(cu).tolist() == [3, 1, 0, 2]


def test_unknown_aggregations_and_a_missing_length_are_refused() -> None:
    mask, cu = torch.ones(2), torch.tensor([0, 2])
    with pytest.raises(ValueError, match=r"^actor\.loss_aggregation: 'mean' is not one of token_mean, "):
        token_weights("mean", mask, cu)
    with pytest.raises(ValueError, match=r"^fixed_length: "):
        denominator("fixed_length", mask, cu)
