"""However a batch is cut into micro-batches and ranks, its gradient is the same."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_like.algorithms import losses
from areal_like.algorithms.aggregation import AGGREGATIONS, denominator, token_weights
from areal_like.algorithms.packed import lengths

FIXED_LENGTH = 7


def batch(sizes: list[int]) -> dict[str, torch.Tensor]:
    tokens = sum(sizes)
    generator = torch.Generator().manual_seed(tokens)
    found = {name: torch.randn(tokens, generator=generator) for name in ("logprobs", "old", "proximal", "advantages")}
    found["entropy"] = torch.rand(tokens, generator=generator)
    found["mask"] = torch.rand(tokens, generator=generator) < 0.7
    return found


def cumulative(sizes: list[int]) -> torch.Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def part_of(
    data: dict[str, torch.Tensor], sizes: list[int], rows: list[int]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    starts = cumulative(sizes)
    places = [torch.arange(int(starts[row]), int(starts[row + 1])) for row in rows]
    chosen = torch.cat([*places, torch.zeros(0, dtype=torch.long)])
    return {name: x[chosen] for name, x in data.items()}, cumulative([sizes[row] for row in rows])


def total(data: dict[str, torch.Tensor], cu: torch.Tensor, loss: str, aggregation: str) -> torch.Tensor:
    weights = token_weights(aggregation, data["mask"], cu)
    if loss == "cross_entropy":
        return losses.cross_entropy(data["logprobs"], data["mask"], weights=weights).total
    options: dict[str, Any] = {"cu_seqlens": cu, "weights": weights, "entropy": data["entropy"], "entropy_coef": 0.01}
    if loss != "plain":
        options |= {"proximal_logprobs": data["proximal"], "behav_imp_weight_cap": 3.0, "c_clip": 3.0}
    if loss == "sequence":
        options |= {"ratio_level": "sequence", "ratio_length_norm": True, "sequence_mask_low": 0.2, "mask_high": 8.0}
    return losses.ppo(data["logprobs"], data["old"], data["advantages"], data["mask"], **options).total


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", ["plain", "decoupled", "sequence", "cross_entropy"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(drawn=st.data())
def test_any_cut_gives_the_same_loss_and_gradient(loss, aggregation, drawn) -> None:
    sizes = drawn.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7), label="lengths")
    places = drawn.draw(
        st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)), label="micro-batch of each"
    )
    cut = [[row for row, place in enumerate(places) if place == number] for number in range(4)]
    data = batch(sizes)
    parameters = {name: data[name].clone().requires_grad_() for name in ("logprobs", "entropy")}
    data |= parameters

    def count(rows: list[int]) -> float:
        part, cu = part_of(data, sizes, rows)
        return denominator(aggregation, part["mask"], cu, FIXED_LENGTH)

    whole = total(data, cumulative(sizes), loss, aggregation) / max(count(list(range(len(sizes)))), 1.0)
    everything = sum(count(rows) for rows in cut)
    pieces = [total(*part_of(data, sizes, rows), loss, aggregation) / max(everything, 1.0) for rows in cut]
    together = torch.stack(pieces).sum()

    torch.testing.assert_close(together, whole, atol=1e-6, rtol=1e-6)
    inputs = list(parameters.values())
    for cut_gradient, gradient in zip(
        torch.autograd.grad(together, inputs, materialize_grads=True, retain_graph=True),
        torch.autograd.grad(whole, inputs, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(cut_gradient, gradient, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("aggregation", "weights", "count"),
    [
        ("token_mean", [1, 1, 0, 1, 0, 0], 3),
        ("sequence_mean_token_sum", [1, 1, 0, 1, 0, 0], 2),
        ("sequence_mean_token_mean", [0.5, 0.5, 0, 1, 0, 0], 2),
        ("fixed_length", [1, 1, 0, 1, 0, 0], 14),
    ],
)
def test_what_tokens_weigh_and_what_the_sum_is_divided_by(aggregation, weights, count) -> None:
    mask, cu = torch.tensor([1, 1, 0, 1, 0, 0]), torch.tensor([0, 3, 4, 4, 6])  # the last sequence has none in the loss
    assert token_weights(aggregation, mask, cu).tolist() == weights
    assert denominator(aggregation, mask, cu, FIXED_LENGTH) == count
    assert lengths(cu).tolist() == [3, 1, 0, 2]


def test_unknown_aggregations_and_a_missing_length_are_refused() -> None:
    mask, cu = torch.ones(2), torch.tensor([0, 2])
    with pytest.raises(ValueError, match=r"^actor\.loss_aggregation: 'mean' is none of token_mean, "):
        token_weights("mean", mask, cu)
    with pytest.raises(ValueError, match=r"^fixed_length: "):
        denominator("fixed_length", mask, cu)
