"""Policy and supervised losses: known numbers, masks, and gradients."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from areal_like.algorithms import losses
from areal_like.algorithms.statistics import Statistics

ADVANTAGES = torch.tensor([1.0, -1, -2, 0.5])
NEW = torch.tensor([0.5, 0.4, 0.3, 0.9]).log()
PROXIMAL = torch.tensor([0.4, 0.5, 0.1, 0.9]).log()
OLD = torch.tensor([0.2, 0.5, 0.1, 0.1]).log()
ALL = torch.ones(4, dtype=torch.bool)


def means_of(found: Statistics) -> dict[str, float]:
    means = {name: (value / found.sums["tokens"]).item() for name, value in found.sums.items()}
    return means | {name: value.item() for name, value in found.maxima.items()}


def tokens_of(found: losses.Loss) -> float:
    return found.statistics.sums["tokens"].item()


def test_the_plain_loss_gives_the_known_numbers() -> None:
    found = losses.ppo(NEW, PROXIMAL, ADVANTAGES, ALL)
    assert found.total.item() / tokens_of(found) == pytest.approx(1.275)
    means = means_of(found.statistics)
    assert means["clip_fraction"] == 0.25
    assert means["policy_loss"] == pytest.approx(1.275)
    assert means["ratio_max"] == pytest.approx(3)
    assert means["behaviour_weight"] == 1
    each = [losses.ppo(*(x[at : at + 1] for x in (NEW, PROXIMAL, ADVANTAGES, ALL))).total.item() for at in range(4)]
    assert each == pytest.approx([-1.2, 0.8, 6, -0.5])


@pytest.mark.parametrize(
    ("options", "mask", "wanted", "clipped", "dual", "taken_out"),
    [
        ({}, [1, 1, 1, 1], -0.025, 1, 0, 0),
        ({"eps_clip_higher": 0.28}, [1, 1, 1, 1], -0.05, 0, 0, 0),
        ({"c_clip": 1.5}, [1, 1, 1, 1], -0.775, 1, 1, 0),
        ({"behav_imp_weight_cap": 5.0}, [1, 1, 1, 1], 1.1, 1, 0, 1),
        ({"behav_imp_weight_cap": 5.0}, [1, 1, 0, 1], -0.533333, 1, 0, 1),
    ],
)
def test_the_decoupled_loss_gives_the_known_numbers(options, mask, wanted, clipped, dual, taken_out) -> None:
    found = losses.ppo(NEW, OLD, ADVANTAGES, torch.tensor(mask), proximal_logprobs=PROXIMAL, **options)
    assert found.total.item() / sum(mask) == pytest.approx(wanted, abs=1e-6)
    sums = {name: value.item() for name, value in found.statistics.sums.items()}
    assert sums["tokens"] == sum(mask)
    assert (sums["clip_fraction"], sums["dual_clip_fraction"], sums["taken_out"]) == (clipped, dual, taken_out)
    assert found.statistics.maxima["behaviour_weight_max"].item() == pytest.approx(9)


def test_a_dual_clip_of_one_or_less_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^actor\.c_clip: must be more than 1"):
        losses.ppo(NEW, OLD, ADVANTAGES, ALL, c_clip=1.0)


PRIME: dict[str, Any] = {"eps_clip": math.inf, "mask_high": 8.0, "mask_low": 0.125, "cu_seqlens": torch.tensor([0, 4])}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, -0.303265),
        ({"sequence_mask_low": 0.1}, 0.0),
        ({"ratio_level": "sequence", "ratio_length_norm": True}, -0.423241 * 3),  # prime-rl divides by its tokens
        ({"ratio_level": "sequence"}, -0.303265 * 3),
        ({"mask_high": 20.0, "mask_low": 0.0}, -6.435555),
    ],
)
def test_masked_ratios_without_a_clip_give_the_numbers_of_prime_rl(options, wanted) -> None:
    trained, sampled = torch.tensor([-1, -2, -0.5, -3]), torch.tensor([-1.2, -1.5, -3, -0.5])
    found = losses.ppo(trained, sampled, torch.full((4,), 0.5), torch.tensor([0, 1, 1, 1]), **{**PRIME, **options})
    assert found.total.item() == pytest.approx(wanted, rel=2e-6)


def test_a_ratio_per_sequence_passes_the_gradient_of_its_geometric_mean_on_to_every_token() -> None:
    torch.manual_seed(0)
    cu, mask = torch.tensor([0, 3, 8]), torch.tensor([0, 1, 1, 0, 1, 1, 1, 1]).bool()
    logprobs = torch.randn(8, dtype=torch.float64, requires_grad=True)
    old = logprobs.detach() + 0.1 * torch.randn(8, dtype=torch.float64)
    advantages = torch.tensor([1.0] * 3 + [-2.0] * 5, dtype=torch.float64)
    weights = mask / torch.tensor([2.0] * 3 + [4.0] * 5)
    found = losses.ppo(
        logprobs,
        old,
        advantages,
        mask,
        weights=weights,
        eps_clip=10,
        cu_seqlens=cu,
        ratio_level="sequence",
        ratio_length_norm=True,
    )
    (gradient,) = torch.autograd.grad(found.total, logprobs)
    wanted = torch.zeros((), dtype=torch.float64)
    for part in (slice(0, 3), slice(3, 8)):
        kept = mask[part]
        wanted = wanted - advantages[part][0] * (logprobs - old)[part][kept].mean().exp()
    (wanted_gradient,) = torch.autograd.grad(wanted, logprobs)
    torch.testing.assert_close(found.total, wanted)
    torch.testing.assert_close(gradient, wanted_gradient)
    with pytest.raises(ValueError, match=r"^actor\.ratio\.level: 'word'"):
        losses.ppo(NEW, OLD, ADVANTAGES, ALL, ratio_level="word")


def test_policies_far_apart_give_finite_losses_and_gradients() -> None:
    for level in ("token", "sequence"):
        logprobs = torch.tensor([0.0, -900, 0, -900], requires_grad=True)
        found = losses.ppo(
            logprobs,
            torch.tensor([-900.0, 0, -900, 0]),
            torch.tensor([1.0, 1, -1, -1]),
            ALL,
            proximal_logprobs=torch.tensor([-500.0, 0, -900, 500]),
            cu_seqlens=torch.tensor([0, 1, 2, 3, 4]),
            ratio_level=level,
            mask_low=1e-12,
        )
        found.total.backward()
        assert found.total.isfinite()
        assert logprobs.grad is not None and logprobs.grad.isfinite().all()
        assert all(math.isfinite(value) for value in means_of(found.statistics).values())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_masked_token_never_matters_not_even_if_it_is_not_finite(value) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([0, 1, 1, 0, 1, 0, 1, 1]).bool()
    cu = torch.tensor([0, 4, 8])
    plain = {name: torch.randn(8) for name in ("logprobs", "old_logprobs", "proximal_logprobs", "advantages")}
    plain |= {"entropy": torch.rand(8), "weights": torch.rand(8)}
    poisoned = {name: torch.where(mask, x, value) for name, x in plain.items()}
    options: dict[str, Any] = {
        "c_clip": 3.0,
        "behav_imp_weight_cap": 4.0,
        "mask_low": 0.01,
        "mask_high": 50.0,
        "entropy_coef": 0.1,
    }

    def all_losses(plain: dict[str, Tensor]) -> list[Tensor | float]:
        given: dict[str, Any] = {
            name: x.clone().requires_grad_(name in ("logprobs", "entropy")) for name, x in plain.items()
        }
        found: list[Tensor | float] = []
        for level in ("token", "sequence"):
            policy = losses.ppo(
                **given, loss_mask=mask, cu_seqlens=cu, ratio_level=level, sequence_mask_low=1e-3, **options
            )
            supervised = losses.cross_entropy(given["logprobs"], mask, weights=given["weights"])
            apart = losses.off_policy(given["logprobs"], given["old_logprobs"], mask)
            total = policy.total + supervised.total
            found += [total.detach(), *torch.autograd.grad(total, [given["logprobs"], given["entropy"]])]
            for statistics in (policy.statistics, supervised.statistics, apart):
                found += means_of(statistics).values()
        return found

    for clean, dirty in zip(all_losses(plain), all_losses(poisoned), strict=True):
        torch.testing.assert_close(torch.as_tensor(dirty), torch.as_tensor(clean), rtol=0, atol=0)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    logprobs, entropy = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    near = logprobs.detach() + 0.3 * torch.randn(6, dtype=torch.float64)
    mask, advantages = torch.tensor([1, 0, 1, 1, 1, 1]), torch.randn(6, dtype=torch.float64)

    def policy(logprobs: Tensor, entropy: Tensor) -> Tensor:
        options: dict[str, Any] = {"entropy": entropy, "entropy_coef": 0.2, "c_clip": 1.3, "proximal_logprobs": near}
        return losses.ppo(logprobs, near + 0.1, advantages, mask, **options).total

    assert torch.autograd.gradcheck(policy, (logprobs, entropy))
    assert torch.autograd.gradcheck(lambda x: losses.cross_entropy(x, mask, weights=advantages).total, (logprobs,))


def test_an_entropy_bonus_lowers_the_loss_by_its_share() -> None:
    entropy = torch.tensor([1.0, 2, 3, 4])
    plain = losses.ppo(NEW, OLD, ADVANTAGES, ALL).total
    found = losses.ppo(NEW, OLD, ADVANTAGES, ALL, entropy=entropy, entropy_coef=0.1)
    assert found.total.item() == pytest.approx(plain.item() - 1.0)
    assert means_of(found.statistics)["entropy"] == 2.5


def test_cross_entropy_is_the_sum_of_what_was_not_expected() -> None:
    found = losses.cross_entropy(NEW, torch.tensor([1, 1, 0, 1]), weights=torch.tensor([1.0, 2, 5, 1]))
    assert found.total.item() == pytest.approx(-(math.log(0.5) + 2 * math.log(0.4) + math.log(0.9)))
    assert means_of(found.statistics)["nll"] == pytest.approx(-(math.log(0.5) + math.log(0.4) + math.log(0.9)) / 3)


def test_how_far_sampler_and_trainer_are_apart() -> None:
    trained, sampled = torch.tensor([-1.0, -2, -9]), torch.tensor([-1.5, -2, -1])
    found = means_of(losses.off_policy(trained, sampled, torch.tensor([1, 1, 0])))
    assert found["logprob_diff"] == pytest.approx(0.25)
    assert found["logprob_diff_max"] == 0.5
    assert found["kl"] == pytest.approx((math.exp(0.5) - 1 - 0.5) / 2)
    assert found["weight"] == pytest.approx((math.exp(0.5) + 1) / 2)
    assert found["weight_max"] == pytest.approx(math.exp(0.5))


def test_statistics_of_parts_add_up_to_those_of_the_whole() -> None:
    whole = losses.ppo(NEW, OLD, ADVANTAGES, ALL, proximal_logprobs=PROXIMAL).statistics
    parts = [
        losses.ppo(*(x[part] for x in (NEW, OLD, ADVANTAGES, ALL)), proximal_logprobs=PROXIMAL[part]).statistics
        for part in (slice(0, 1), slice(1, 1), slice(1, 4))
    ]
    for name, value in whole.sums.items():
        assert sum(part.sums[name].item() for part in parts) == pytest.approx(value.item())
    for name, value in whole.maxima.items():
        assert max(part.maxima[name].item() for part in parts) == value.item()
