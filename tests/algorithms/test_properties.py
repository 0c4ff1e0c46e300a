"""Properties of every loss and advantage estimator: masks, padding, gradients, and the order of groups."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from areal_like.algorithms.advantages import terminal_rewards
from areal_like.algorithms.aggregation import AGGREGATIONS, denominator, token_weights
from areal_like.algorithms.kl import kl_rewards
from areal_like.algorithms.losses import Loss, off_policy, pairwise
from areal_like.algorithms.packed import repeat_per_token, sum_of_sequence
from areal_like.algorithms.statistics import Statistics
from tests.support.every_loss import (
    EVERY,
    FIXED_LENGTH,
    GRADIENTS,
    POLICY,
    STOPPED_GRADIENT,
    Tokens,
    compute,
    cumulative,
    draw_tokens,
    gradients,
    part_of,
    share,
    with_gradient,
)
from tests.support.key_defaults import generalized_advantages, group_advantages, normalize

lengths = st.lists(st.integers(0, 8), min_size=1, max_size=6)
POISON = (torch.nan, torch.inf, -torch.inf)


def loss_of(name: str, tokens: Tokens, cu: Tensor, aggregation: str = "sequence_mean_token_mean") -> Loss:
    return compute(name, tokens, cu, token_weights(aggregation, tokens["mask"], cu))


def numbers(actual: Statistics) -> list[Tensor]:
    return [*actual.sums.values(), *actual.maxima.values()]


@pytest.mark.parametrize("name", EVERY)
@share(15)
@given(sizes=lengths, poison=st.sampled_from(POISON))
def test_a_masked_token_never_matters_even_if_not_finite(name, sizes, poison) -> None:
    clean, cu = draw_tokens(sizes), cumulative(sizes)
    dirty = {key: x if key == "mask" else torch.where(clean["mask"], x, poison) for key, x in clean.items()}
    actual = []
    for tokens in (with_gradient(clean), with_gradient(dirty)):
        loss = loss_of(name, tokens, cu)
        actual.append([loss.total.detach(), *gradients(loss.total, tokens), *numbers(loss.statistics)])
    for with_poison, without in zip(actual[1], actual[0], strict=True):
        assert torch.equal(with_poison, without)


@share(6)
@given(sizes=lengths, poison=st.sampled_from(POISON))
def test_masked_tokens_do_not_change_advantages_penalties_or_metrics(sizes, poison) -> None:
    clean, cu = draw_tokens(sizes), cumulative(sizes)
    mask = clean["mask"]
    dirty = {key: x if key == "mask" else torch.where(mask, x, poison) for key, x in clean.items()}
    groups = torch.arange(len(mask)) % 3

    def everything(tokens: Tokens) -> list[Tensor]:
        penalty = kl_rewards(tokens["old"], tokens["reference"], mask, coefficient=0.1, estimator="k3")
        rewards = terminal_rewards(torch.ones(len(sizes)), mask, cu) + penalty
        credit = generalized_advantages(rewards, mask, cu, values=tokens["old_values"], discount=0.9, gae_lambda=0.8)
        shaped = [normalize(tokens["advantages"], mask=mask, groups=groups, **norm) for norm in NORMS.values()]
        return [*credit, *shaped, *numbers(off_policy(tokens["logprobs"], tokens["old"], mask))]

    for with_poison, without in zip(everything(dirty), everything(clean), strict=True):
        assert torch.equal(with_poison, without)


@pytest.mark.parametrize("name", EVERY)
@share(15)
@given(sizes=lengths, padding=st.lists(st.integers(0, 4), min_size=6, max_size=6), rows=st.integers(0, 2))
def test_padding_never_matters(name, sizes, padding, rows) -> None:
    """Tokens out of the loss behind each sequence, and whole sequences of them at the end."""
    bare, cu = draw_tokens(sizes), cumulative(sizes)
    longer = [size + more for size, more in zip(sizes, padding, strict=False)] + [3] * rows
    places = torch.cat(
        [int(start) + torch.arange(size) for size, start in zip(sizes, cumulative(longer), strict=False)]
    )
    total = sum(longer)
    padded = {
        key: x.new_full((total,), False if key == "mask" else -7).index_put((places,), x) for key, x in bare.items()
    }
    for aggregation in AGGREGATIONS:
        actual = []
        for tokens, starts in ((with_gradient(bare), cu), (with_gradient(padded), cumulative(longer))):
            loss = loss_of(name, tokens, starts, aggregation)
            count = denominator(aggregation, tokens["mask"], starts, FIXED_LENGTH)
            actual.append((loss.total.detach(), count, gradients(loss.total, tokens), numbers(loss.statistics)))
        (alone, count, gradient, reported), (within, same_count, of_padded, same_reported) = actual
        assert count == same_count
        torch.testing.assert_close(within, alone, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(same_reported, reported, atol=1e-6, rtol=1e-5)
        for one, other in zip(of_padded, gradient, strict=True):
            torch.testing.assert_close(one[places], other, atol=1e-6, rtol=1e-5)
            assert one.count_nonzero() == one[places].count_nonzero()


@pytest.mark.parametrize("name", [name for name in EVERY if name not in STOPPED_GRADIENT])
@share(60)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_gradients_match_finite_differences(name, sizes) -> None:
    """A ratio of a whole sequence moves with each of its tokens: there the advantage is that of the answer."""
    tokens, cu = draw_tokens(sizes, torch.float64), cumulative(sizes)
    _, options = POLICY.get(name, ("", {}))
    if "level" in options.get("ratio", {}):
        tokens["advantages"] = repeat_per_token(tokens["advantages"][cu[:-1]], cu, int(cu[-1]))
    # The product over n tokens, added up n times, moves n times as much as each token is made to learn.
    is_product = name == "product of a sequence"
    times = repeat_per_token(sum_of_sequence(tokens["mask"].double(), cu), cu, int(cu[-1])) if is_product else 1.0

    def total(*learnt: Tensor) -> Tensor:
        logprobs, *rest = learnt
        if is_product:
            logprobs = logprobs.detach() + (logprobs - logprobs.detach()) * times
        return loss_of(name, {**tokens, **dict(zip(GRADIENTS, (logprobs, *rest), strict=True))}, cu).total

    assert torch.autograd.gradcheck(total, tuple(with_gradient(tokens)[key] for key in GRADIENTS))


def test_gradients_of_pairs_match_finite_differences() -> None:
    scores = [torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda *scores: pairwise(*scores).total, tuple(scores))


NORMS: dict[str, dict[str, Any]] = {
    "grpo": {"mean_level": "group", "std_level": "group"},
    "dr_grpo": {"mean_level": "group", "std_level": None},
    "rloo": {"mean_level": "group", "mean_leave1out": True, "std_level": None},
    "reinforce": {},
    "lite_ppo": {"mean_level": "group", "std_level": "batch"},
    "leave one out of the batch": {"mean_leave1out": True, "std_level": "group", "std_unbiased": False},
}
PRIME: dict[str, dict[str, Any]] = {
    "prime_rl": {},
    "by length": {"length_weighted_mean": True},
    "leave one out": {"leave_one_out": True},
    "leave one out by length": {"length_weighted_mean": True, "leave_one_out": True},
    "no negatives": {"neg_clipped": True},
    "local": {"std_norm": "local"},
    "global": {"std_norm": "global"},
    "mean": {"mean_norm": True},
    "all": {"length_weighted_mean": True, "leave_one_out": True, "neg_clipped": True, "std_norm": "local"},
}
Estimator = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From rewards, groups and lengths."""
ESTIMATORS: dict[str, Estimator] = {
    **{name: lambda r, g, _, o=options: normalize(r, groups=g, **o) for name, options in NORMS.items()},  # type: ignore[misc]
    **{f"prime_rl {name}": partial(group_advantages, **options) for name, options in PRIME.items()},
}
answers = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 1.0, -2.0, 7.5]), st.integers(1, 50)),
    min_size=1,
    max_size=12,
)
"""Group, reward and length of each answer: groups of any size."""


@pytest.mark.parametrize("name", ESTIMATORS)
@share(6)
@given(drawn=answers, data=st.data())
def test_advantages_do_not_depend_on_the_order_of_groups_and_answers(name, drawn, data) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(drawn))), label="order"))
    groups, rewards, counts = (torch.tensor(values) for values in zip(*drawn, strict=True))
    straight = ESTIMATORS[name](rewards, groups, counts)
    renamed = (7 * groups + 3) % 11
    shuffled = ESTIMATORS[name](rewards[order], renamed[order], counts[order])
    torch.testing.assert_close(shuffled, straight[order], atol=1e-6, rtol=1e-5)


@share(6)
@given(sizes=lengths, data=st.data())
def test_generalized_advantages_do_not_depend_on_the_order_of_sequences(sizes, data) -> None:
    order = data.draw(st.permutations(range(len(sizes))), label="order")
    rewards = torch.randn(len(sizes))

    def credit(tokens: Tokens, cu: Tensor, rewards: Tensor) -> Tensor:
        spread = terminal_rewards(rewards, tokens["mask"], cu)
        options: dict[str, Any] = {"values": tokens["values"], "discount": 0.9, "gae_lambda": 0.95}
        actual: Tensor = generalized_advantages(spread, tokens["mask"], cu, **options).advantages
        return actual

    tokens = draw_tokens(sizes)
    straight = credit(tokens, cumulative(sizes), rewards)
    moved, cu = part_of(tokens, sizes, order)
    again, _ = part_of({"advantages": straight}, sizes, order)
    torch.testing.assert_close(credit(moved, cu, rewards[torch.tensor(order)]), again["advantages"])


@pytest.mark.parametrize("name", EVERY)
def test_the_examples_of_these_tests_reach_every_clip_and_mask(name) -> None:
    sizes = [8, 9, 7, 12, 10, 8, 9]
    tokens, cu = draw_tokens(sizes), cumulative(sizes)
    sums = {key: value.item() for key, value in loss_of(name, tokens, cu).statistics.sums.items()}
    loss, options = POLICY.get(name, ("", {}))
    binding = {
        "clip_fraction": loss == "ppo" or name == "value",
        "taken_out": "mask_high" in str(options) or ("cap" in str(options) and "truncate" not in str(options)),
        "truncated": "truncate" in str(options),
    }
    if loss in ("", "ppo", "importance_sampling"):
        reached = {key for key in binding if sums.get(key, 0) > 0}
        assert reached == {key for key, expected in binding.items() if expected}
    else:
        of_loss = [loss_of(each, tokens, cu).statistics.sums for each, (other, _) in POLICY.items() if other == loss]
        assert all(any(key in each and each[key] != 0 for each in of_loss) for key in sums)
    assert 0 < sums["tokens"] < sum(sizes)
