"""Policy and supervised losses: known numbers, masks, and gradients."""

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_like.algorithms import losses
from areal_like.algorithms.aggregation import denominator, token_weights
from areal_like.algorithms.statistics import Statistics
from areal_like.config.sections.actor import RatioConfig
from tests.support.every_loss import policy_loss

ADVANTAGES = torch.tensor([1.0, -1, -2, 0.5])
NEW = torch.tensor([0.5, 0.4, 0.3, 0.9]).log()
PROXIMAL = torch.tensor([0.4, 0.5, 0.1, 0.9]).log()
OLD = torch.tensor([0.2, 0.5, 0.1, 0.1]).log()
ALL = torch.ones(4, dtype=torch.bool)
ALONE = torch.tensor([0, 4])
RATIO_KEYS = [each.name for each in fields(RatioConfig)]


def ppo(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    proximal_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    cu_seqlens: Tensor = ALONE,
    weights: Tensor | None = None,
    **options: Any,
) -> losses.Loss:
    """PPO's loss with keys of `actor` and of `actor.ratio`; the others have their defaults."""
    inputs = losses.Inputs(
        logprobs=new,
        old_logprobs=old,
        proximal_logprobs=proximal_logprobs,
        reference_logprobs=None,
        advantages=advantages,
        entropy=entropy,
        loss_mask=mask,
        cu_seqlens=cu_seqlens,
        weights=torch.ones_like(advantages) if weights is None else weights,
    )
    ratio = {key: options.pop(key) for key in RATIO_KEYS if key in options}
    return policy_loss("ppo", inputs, use_decoupled_loss=proximal_logprobs is not None, ratio=ratio, **options)


def means_of(actual: Statistics) -> dict[str, float]:
    means = {name: (value / actual.sums["tokens"]).item() for name, value in actual.sums.items()}
    return means | {name: value.item() for name, value in actual.maxima.items()}


def tokens_of(actual: losses.Loss) -> float:
    return actual.statistics.sums["tokens"].item()


def test_the_plain_loss_gives_the_known_numbers() -> None:
    actual = ppo(NEW, PROXIMAL, ADVANTAGES, ALL)
    assert actual.total.item() / tokens_of(actual) == pytest.approx(1.275)
    means = means_of(actual.statistics)
    assert means["clip_fraction"] == 0.25
    each = [ppo(*(x[at : at + 1] for x in (NEW, PROXIMAL, ADVANTAGES, ALL))).total.item() for at in range(4)]
    assert each == pytest.approx([-1.2, 0.8, 6, -0.5])


@pytest.mark.parametrize(
    ("options", "mask", "expected", "clipped", "taken_out"),
    [
        ({}, [1, 1, 1, 1], -0.025, 1, 0),
        ({"eps_clip_higher": 0.28}, [1, 1, 1, 1], -0.05, 0, 0),
        ({"c_clip": 1.5}, [1, 1, 1, 1], -0.775, 1, 0),
        ({"behav_imp_weight_cap": 5.0}, [1, 1, 1, 1], 1.1, 1, 1),
        ({"behav_imp_weight_cap": 5.0}, [1, 1, 0, 1], -0.533333, 1, 1),
    ],
)
def test_the_decoupled_loss_gives_the_known_numbers(options, mask, expected, clipped, taken_out) -> None:
    actual = ppo(NEW, OLD, ADVANTAGES, torch.tensor(mask), proximal_logprobs=PROXIMAL, **options)
    assert actual.total.item() / sum(mask) == pytest.approx(expected, abs=1e-6)
    sums = {name: value.item() for name, value in actual.statistics.sums.items()}
    assert sums == {"tokens": sum(mask), "clip_fraction": clipped, "taken_out": taken_out, "truncated": 0}


def test_a_dual_clip_of_one_or_less_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^actor\.c_clip: must be more than 1"):
        ppo(NEW, OLD, ADVANTAGES, ALL, c_clip=1.0)


TRAINED, SAMPLED = torch.tensor([-1, -2, -0.5, -3]), torch.tensor([-1.2, -1.5, -3, -0.5])
ANSWER = torch.tensor([0, 1, 1, 1])
MEAN = token_weights("sequence_mean_token_mean", ANSWER, ALONE)
"""With a ratio of the sequence, prime-rl divides by its tokens: that is this aggregation here."""
PRIME: dict[str, Any] = {"eps_clip": None, "mask_high": 8.0, "mask_low": 0.125, "cu_seqlens": ALONE}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -0.303265),
        ({"sequence_mask_low": 0.1}, 0.0),
        ({"level": "sequence", "length_norm": True, "weights": MEAN}, -0.423241),
        ({"level": "sequence", "weights": MEAN}, -0.303265),
        ({"mask_high": 20.0, "mask_low": 0.0}, -6.435555),
    ],
)
def test_masked_ratios_without_a_clip_give_the_numbers_of_prime_rl(options, expected) -> None:
    actual = ppo(TRAINED, SAMPLED, torch.full((4,), 0.5), ANSWER, **{**PRIME, **options})
    assert actual.total.item() == pytest.approx(expected, rel=2e-6)


def test_every_token_gets_the_gradient_of_the_sequence_ratio() -> None:
    torch.manual_seed(0)
    cu, mask = torch.tensor([0, 3, 8]), torch.tensor([0, 1, 1, 0, 1, 1, 1, 1]).bool()
    logprobs = torch.randn(8, dtype=torch.float64, requires_grad=True)
    old = logprobs.detach() + 0.1 * torch.randn(8, dtype=torch.float64)
    advantages = torch.tensor([1.0] * 3 + [-2.0] * 5, dtype=torch.float64)
    weights = mask / torch.tensor([2.0] * 3 + [4.0] * 5)
    actual = ppo(
        logprobs,
        old,
        advantages,
        mask,
        weights=weights,
        eps_clip=10,
        cu_seqlens=cu,
        level="sequence",
        length_norm=True,
    )
    (gradient,) = torch.autograd.grad(actual.total, logprobs)
    expected = torch.zeros((), dtype=torch.float64)
    for part in (slice(0, 3), slice(3, 8)):
        kept = mask[part]
        expected = expected - advantages[part][0] * (logprobs - old)[part][kept].mean().exp()
    (wanted_gradient,) = torch.autograd.grad(expected, logprobs)
    torch.testing.assert_close(actual.total, expected)
    torch.testing.assert_close(gradient, wanted_gradient)
    with pytest.raises(ValueError, match=r"^actor\.ratio\.level: 'word'"):
        ppo(NEW, OLD, ADVANTAGES, ALL, level="word")


def test_losses_of_distant_policies_are_finite_unlike_prime_rl() -> None:
    for level in ("token", "sequence"):
        logprobs = torch.tensor([0.0, -900, 0, -900], requires_grad=True)
        actual = ppo(
            logprobs,
            torch.tensor([-900.0, 0, -900, 0]),
            torch.tensor([1.0, 1, -1, -1]),
            ALL,
            proximal_logprobs=torch.tensor([-500.0, 0, -900, 500]),
            cu_seqlens=torch.tensor([0, 1, 2, 3, 4]),
            level=level,
            mask_low=1e-12,
        )
        actual.total.backward()
        assert actual.total.isfinite()
        assert logprobs.grad is not None and logprobs.grad.isfinite().all()
        assert all(math.isfinite(value) for value in means_of(actual.statistics).values())


def test_a_loss_is_divided_by_the_count_of_all_ranks_unlike_prime_rl() -> None:
    """There a rank with few tokens counts as much as one with many; with sequence ratios it is micro-batches."""
    mask, cu = torch.ones(5, dtype=torch.bool), torch.tensor([0, 1, 5])
    first, second = (slice(0, 1), torch.tensor([0, 1])), (slice(1, 5), torch.tensor([0, 4]))
    for aggregation, expected in (("token_mean", 5), ("sequence_mean_token_mean", 2)):
        assert denominator(aggregation, mask, cu) == expected
        assert sum(denominator(aggregation, mask[part], starts) for part, starts in (first, second)) == expected


def test_a_truncated_weight_equals_its_limit() -> None:
    """Weights 2, 1, 1 and 9 of losses -1.2, 0.8, 6 and -0.5."""

    def total(**options: Any) -> float:
        return ppo(NEW, OLD, ADVANTAGES, ALL, proximal_logprobs=PROXIMAL, cu_seqlens=ALONE, **options).total.item()

    cap: dict[str, Any] = {"behav_imp_weight_cap": 5.0, "behav_imp_weight_mode": "truncate"}
    assert total(**cap) == pytest.approx(-2.4 + 0.8 + 6 - 2.5)
    assert total(**cap, behav_imp_weight_floor=1.5) == pytest.approx(-2.4 + 1.2 + 9 - 2.5)
    assert total(behav_imp_weight_floor=1.5) == pytest.approx(-2.4 - 4.5)
    assert total(**cap, behav_imp_weight_level="sequence") == pytest.approx(5 * 5.1)
    assert total(behav_imp_weight_level="geometric") == pytest.approx(18**0.25 * 5.1, rel=1e-5)
    assert total(behav_imp_weight_level="sequence", behav_imp_weight_cap=5.0) == 0
    for key, options in (("mode", {"behav_imp_weight_mode": "clip"}), ("level", {"behav_imp_weight_level": "word"})):
        with pytest.raises(ValueError, match=rf"^actor\.behav_imp_weight_{key}: "):
            total(**options)


def test_truncated_and_masked_weights_are_reported() -> None:
    actual = {}
    for mode in ("mask", "truncate"):
        options: dict[str, Any] = {"behav_imp_weight_cap": 5.0, "behav_imp_weight_mode": mode}
        actual[mode] = ppo(NEW, OLD, ADVANTAGES, ALL, proximal_logprobs=PROXIMAL, **options).statistics
    reported = {mode: [sums.sums[name].item() for name in ("taken_out", "truncated")] for mode, sums in actual.items()}
    assert reported == {"mask": [1, 0], "truncate": [0, 1]}


def test_values_give_the_known_numbers() -> None:
    values, old, returns = torch.tensor([1.0, 2, -1]), torch.tensor([0, 1.9, 0]), torch.tensor([2.0, 2, 0])
    actual = losses.value(values, old, returns, ALL[:3], eps_clip=0.5)
    assert actual.total.item() / 3 == pytest.approx(0.541667, abs=1e-6)
    each = [losses.value(*(x[at : at + 1] for x in (values, old, returns, ALL)), eps_clip=0.5) for at in range(3)]
    assert [one.total.item() for one in each] == [1.125, 0, 0.5]
    assert [one.statistics.sums["clip_fraction"].item() for one in each] == [1, 0, 0]
    assert losses.value(values, old, returns, ALL[:3], eps_clip=None).total.item() == 1.0


def test_a_value_beyond_its_clip_range_gets_no_gradient() -> None:
    values = torch.tensor([1.0, -1.0], requires_grad=True)
    losses.value(values, torch.zeros(2), torch.tensor([2.0, 2.0]), ALL[:2], eps_clip=0.5).total.backward()
    assert values.grad is not None and values.grad.tolist() == [0, -3]


def test_pairs_give_the_known_numbers_at_any_distance() -> None:
    chosen = torch.tensor([1.0, 0.0, -2.0, 500.0, -500.0], requires_grad=True)
    rejected = torch.tensor([1.0, -1.0, 1.0, -500.0, 500.0], requires_grad=True)
    actual = losses.pairwise(chosen, rejected)
    each = [math.log(2), math.log1p(math.exp(-1)), math.log1p(math.exp(3)), 0, 1000]
    assert actual.total.item() == pytest.approx(sum(each))
    means = means_of(actual.statistics)
    assert (means["accuracy"], means["margin"]) == pytest.approx((0.4, -0.4))
    actual.total.backward()
    assert chosen.grad is not None and rejected.grad is not None
    sigmoids = torch.tensor([0.5, 1 / (1 + math.e), 1 / (1 + math.exp(-3)), 0, 1])
    torch.testing.assert_close(chosen.grad, -sigmoids)
    torch.testing.assert_close(rejected.grad, sigmoids)


def test_an_entropy_bonus_lowers_the_loss_by_its_share() -> None:
    entropy = torch.tensor([1.0, 2, 3, 4])
    plain = ppo(NEW, OLD, ADVANTAGES, ALL).total
    actual = ppo(NEW, OLD, ADVANTAGES, ALL, entropy=entropy, entropy_coef=0.1)
    assert actual.total.item() == pytest.approx(plain.item() - 1.0)
    assert means_of(actual.statistics)["entropy"] == 2.5


def test_cross_entropy_is_the_sum_of_negative_logprobs() -> None:
    actual = losses.cross_entropy(NEW, torch.tensor([1, 1, 0, 1]), weights=torch.tensor([1.0, 2, 5, 1]))
    assert actual.total.item() == pytest.approx(-(math.log(0.5) + 2 * math.log(0.4) + math.log(0.9)))
    assert means_of(actual.statistics)["nll"] == pytest.approx(-(math.log(0.5) + math.log(0.4) + math.log(0.9)) / 3)


def test_the_difference_of_sampler_and_trainer_is_measured() -> None:
    trained, sampled = torch.tensor([-1.0, -2, -9]), torch.tensor([-1.5, -2, -1])
    actual = means_of(losses.off_policy(trained, sampled, torch.tensor([1, 1, 0])))
    assert actual["logprob_diff"] == pytest.approx(0.25)
    assert actual["logprob_diff_max"] == 0.5
    assert actual["kl"] == pytest.approx((math.exp(0.5) - 1 - 0.5) / 2)
    assert actual["weight"] == pytest.approx((math.exp(0.5) + 1) / 2)
    assert actual["weight_max"] == pytest.approx(math.exp(0.5))


def test_statistics_of_parts_add_up_to_the_whole() -> None:
    whole = ppo(NEW, OLD, ADVANTAGES, ALL, proximal_logprobs=PROXIMAL).statistics
    parts = [
        ppo(*(x[part] for x in (NEW, OLD, ADVANTAGES, ALL)), proximal_logprobs=PROXIMAL[part]).statistics
        for part in (slice(0, 1), slice(1, 1), slice(1, 4))
    ]
    for name, value in whole.sums.items():
        assert sum(part.sums[name].item() for part in parts) == pytest.approx(value.item())
    for name, value in whole.maxima.items():
        assert max(part.maxima[name].item() for part in parts) == value.item()
