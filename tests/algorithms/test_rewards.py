"""Reward shaping, KL estimates and advantages: known numbers, except where AReaL and prime-rl are wrong."""

from typing import Any

import pytest
import torch

from areal_like.algorithms import reward_shaping
from areal_like.algorithms.advantages import terminal_rewards
from areal_like.algorithms.kl import kl, kl_loss, kl_rewards
from tests.support.key_defaults import generalized_advantages, group_advantages

# Two sequences of six and four tokens; in AReaL they are rows of six, the second one padded.
CU = torch.tensor([0, 6, 10], dtype=torch.int32)
MASK = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0, 1, 1])

UNSET: dict[str, Any] = {"overlong_tokens": None, "factor": None}


def packed(first: list[float], second: list[float]) -> torch.Tensor:
    """Rows of AReaL, whose place t is about token t + 1, as packed tokens in their own places."""
    return torch.tensor([0.0, *first[:5], 0.0, *second[:3]])


def close(actual: torch.Tensor, expected: torch.Tensor | list[float], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float32), atol=tolerance, rtol=0)


def test_rewards_are_shifted_scaled_and_then_clipped() -> None:
    close(reward_shaping.scale_rewards(torch.tensor([1.0, 0, 9]), bias=-0.5, scaling=10, clip=20), [5, -5, 20])


def test_answers_near_the_maximum_length_are_penalized() -> None:
    lengths = torch.tensor([4, 6, 8, 10])
    options: dict[str, Any] = {"max_new_tokens": 10, "overlong_tokens": 4, "factor": 1.0}
    close(reward_shaping.penalize_overlong(torch.ones(4), lengths, **options), [1, 1, 0.5, 0])
    actual = reward_shaping.penalize_overlong(torch.ones(3), torch.tensor([8, 9, 10]), **{**options, **UNSET})
    close(actual, [1, 0.5, 0])  # a fifth
    with pytest.raises(ValueError, match=r"^actor\.overlong_tokens: 11 is more"):
        reward_shaping.penalize_overlong(torch.ones(4), lengths, **{**options, "overlong_tokens": 11})


def test_the_length_penalty_never_exceeds_its_factor_unlike_areal() -> None:
    """The tokens of all its turns together may be more than one turn may have."""
    close(reward_shaping.penalize_overlong(torch.ones(1), torch.tensor([30]), max_new_tokens=10, **UNSET), [0])


def test_only_cut_off_answers_are_truncated_not_the_longest_unlike_areal() -> None:
    truncated = torch.tensor([False, True])
    close(reward_shaping.zero_truncated(torch.tensor([1.0, 1]), truncated), [1, 0])
    close(reward_shaping.zero_truncated(torch.tensor([1.0, torch.nan]), truncated), [1, 0])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, -1, 0, -10]),
        ("k2", [0.125, 0.5, 0, 10]),
        ("k3", [0.106531, 0.718282, 0, 10]),
    ],
)
def test_kl_estimates_give_the_known_numbers_and_stay_within_their_limit(estimator, expected) -> None:
    logprobs = torch.tensor([-1, -2, -0.5, -30], requires_grad=True)
    actual = kl(logprobs, torch.tensor([-1.5, -1, -0.5, 0]), estimator)
    close(actual.detach(), expected)
    actual.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()


def test_kl_never_becomes_inf_or_nan_however_far_apart() -> None:
    logprobs = torch.tensor([-2000.0, 0], requires_grad=True)
    for estimator in ("k1", "k2", "k3"):
        actual = kl(logprobs, torch.tensor([0, -2000.0]), estimator)
        (gradient,) = torch.autograd.grad(actual.sum(), logprobs)
        assert actual.isfinite().all() and gradient.isfinite().all()
    with pytest.raises(ValueError, match=r"^actor\.kl_estimator: 'k9'"):
        kl(logprobs, logprobs, "k9")


VOCABULARY = 5


def policies() -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of a policy (with its logits as a leaf) and of its reference over a small vocabulary."""
    torch.manual_seed(0)
    logits = torch.randn(VOCABULARY, dtype=torch.float64).div(2).requires_grad_()
    return logits, torch.randn(VOCABULARY, dtype=torch.float64).log_softmax(-1)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_in_the_loss_has_the_gradient_of_a_kl_on_average(estimator) -> None:
    """Over all tokens, each as often as it is sampled. k1 and k2 have that of the KL itself, k3 that of the reference
    against the policy."""
    logits, reference = policies()
    logprobs = logits.log_softmax(-1)
    sampled = logprobs.detach()
    actual = (sampled.exp() * kl_loss(logprobs, sampled, reference, estimator)).sum()
    if estimator == "k3":
        expected = (reference.exp() * (reference - logprobs)).sum()
    else:
        expected = (logprobs.exp() * (logprobs - reference)).sum()
    gradients = [torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (actual, expected)]
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0.1
    torch.testing.assert_close(kl_loss(sampled, sampled, reference, estimator), kl(sampled, reference, estimator))


def test_k1_in_the_loss_uses_the_trained_policy_for_samples_of_any_age() -> None:
    """Without its weight it would draw nowhere: the gradient of a log-probability is 0 on average."""
    logits, reference = policies()
    logprobs, sampled = logits.log_softmax(-1), torch.linspace(-1, 1, VOCABULARY).double().log_softmax(-1)
    estimate = (sampled.exp() * kl_loss(logprobs, sampled, reference, "k1")).sum()
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    torch.testing.assert_close(estimate, divergence)
    torch.testing.assert_close(
        *(torch.autograd.grad(each, logits, retain_graph=True) for each in (estimate, divergence))
    )
    plain = (logprobs.detach().exp() * kl(logprobs, reference, "k1")).sum()
    assert torch.autograd.grad(plain, logits)[0].abs().max() < 1e-9


def test_a_token_far_from_the_reference_still_has_a_gradient() -> None:
    for estimator in ("k1", "k2", "k3"):
        logprobs = torch.tensor([-0.1], requires_grad=True)
        loss = kl_loss(logprobs, logprobs.detach(), torch.tensor([-9.0]), estimator)
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
        assert gradient.item() > 0.5, estimator


def test_a_reward_at_the_end_reaches_every_token_without_discount() -> None:
    rewards = terminal_rewards(torch.tensor([1.0, 0]), MASK, CU)
    close(rewards, [0, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    close(generalized_advantages(rewards, MASK, CU).advantages, [0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    rewards = terminal_rewards(
        reward_shaping.scale_rewards(torch.tensor([1.0, 0]), bias=-0.5, scaling=10, clip=20), MASK, CU
    )
    close(generalized_advantages(rewards, MASK, CU).advantages, [0, 0, 5, 5, 5, 5, 0, 0, -5, -5])


def test_the_kl_penalty_adds_up_over_the_tokens_that_follow() -> None:
    logprobs = packed([0, -0.1, -0.2, -0.3, -0.4, 0], [0, -0.5, -0.6, 0, 0, 0])
    reference = packed([0, -0.2, -0.2, -0.2, -0.2, 0], [0, -0.2, -0.2, 0, 0, 0])
    penalty = kl_rewards(logprobs, reference, MASK, coefficient=0.1, estimator="k1")
    rewards = terminal_rewards(torch.tensor([1.0, 0]), MASK, CU) + penalty
    expected = packed([0, 1.02, 1.03, 1.03, 1.02, 0], [0, 0.07, 0.04, 0, 0, 0])
    close(generalized_advantages(rewards, MASK, CU).advantages, expected)


def test_generalized_advantages_give_the_known_numbers() -> None:
    values = packed([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4, 0, 0])
    rewards = terminal_rewards(torch.tensor([1.0, 0]), MASK, CU)
    options: dict[str, Any] = {"values": values, "discount": 0.9, "gae_lambda": 0.8}
    # The numbers are those of an answer that continues after its last token, with a value of 0.6.
    actual = generalized_advantages(rewards, MASK, CU, bootstrap=torch.tensor([0.6, 0]), **options)
    expected = packed([0, 0.5273, 0.6351, 0.7988, 1.04, 0], [0, -0.146, -0.3, 0, 0, 0])
    close(actual.advantages, expected, 1e-4)
    close(actual.returns, torch.where(MASK.bool(), expected + values, 0.0), 1e-4)


def test_a_complete_answer_is_not_bootstrapped_even_if_longest_unlike_areal() -> None:
    values = packed([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4, 0, 0])
    rewards = terminal_rewards(torch.tensor([1.0, 0]), MASK, CU)
    ended = generalized_advantages(rewards, MASK, CU, values=values, discount=0.9, gae_lambda=0.8).advantages
    assert ended[5].item() == pytest.approx(0.5)  # 1 - V


def test_masked_tokens_have_no_advantage_unlike_areal() -> None:
    rewards = terminal_rewards(torch.tensor([1.0, 1]), MASK, CU)
    values = torch.ones(10)
    actual, returns = generalized_advantages(rewards, MASK, CU, values=values, discount=0.9, gae_lambda=0.8)
    assert not actual[~MASK.bool()].any() and not returns[~MASK.bool()].any()


def test_masked_tokens_are_no_time_step_and_lose_no_reward_unlike_areal() -> None:
    mask = torch.tensor([0, 1, 0, 0, 1, 0])
    cu = torch.tensor([0, 6])
    rewards = terminal_rewards(torch.tensor([1.0]), mask, cu)
    actual = generalized_advantages(rewards, mask, cu, discount=0.5).advantages
    close(actual, [0, 0.5, 0, 0, 1, 0])


def test_generalized_advantages_equal_the_plain_recursion() -> None:
    torch.manual_seed(0)
    cu = torch.tensor([0, 1, 1, 9, 40, 41])
    mask, rewards, values = torch.rand(41) < 0.7, torch.randn(41), torch.randn(41)
    bootstrap = torch.randn(5)
    actual = generalized_advantages(
        rewards, mask, cu, values=values, bootstrap=bootstrap, discount=0.97, gae_lambda=0.9
    ).advantages
    expected = torch.zeros(41, dtype=torch.float64)
    for row in range(5):
        following, advantage = bootstrap[row].double(), torch.zeros((), dtype=torch.float64)
        for at in reversed(range(int(cu[row]), int(cu[row + 1]))):
            if mask[at]:
                advantage = rewards[at] + 0.97 * following - values[at] + 0.97 * 0.9 * advantage
                following, expected[at] = values[at].double(), advantage
    close(actual, expected.float())
    poisoned = [torch.where(mask, x, torch.nan) for x in (rewards, values)]
    again = generalized_advantages(
        poisoned[0], mask, cu, values=poisoned[1], bootstrap=bootstrap, discount=0.97, gae_lambda=0.9
    ).advantages
    assert torch.equal(again, actual)


def test_sequences_without_a_token_in_the_loss_are_no_error() -> None:
    nothing = torch.zeros(10)
    rewards = terminal_rewards(torch.tensor([1.0, 2]), nothing, CU)
    assert not rewards.any()
    assert not generalized_advantages(rewards, nothing, CU).advantages.any()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, -0.5, -0.5, 0.5]),
        ({"length_weighted_mean": True}, [0.5, -0.5, -0.5, 0.5]),
        ({"leave_one_out": True}, [0.666667, -0.666667, -0.666667, 0.666667]),
        ({"length_weighted_mean": True, "leave_one_out": True}, [0.555556, -0.625, -0.714286, 0.833333]),
        ({"neg_clipped": True}, [0.5, 0, 0, 0.5]),
        ({"std_norm": "local"}, [0.866025, -0.866025, -0.866025, 0.866025]),
        ({"std_norm": "global"}, [0.966092, -0.966092, -0.966092, 0.966092]),
    ],
)
def test_group_advantages_give_the_numbers_of_prime_rl(options, expected) -> None:
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1])
    lengths = torch.tensor([10, 20, 30, 40, 1, 1, 1, 1])
    actual = group_advantages(rewards, torch.tensor([5] * 4 + [2] * 4), lengths, **options)
    close(actual[:4], expected)


def test_group_advantages_of_one_answer_or_equal_rewards_are_0_unlike_prime_rl() -> None:
    alone = group_advantages(
        torch.tensor([3.0]), torch.tensor([0]), torch.ones(1), leave_one_out=True, std_norm="local"
    )
    assert alone.item() == 0
    equal = group_advantages(torch.full((5,), 0.7), torch.zeros(5, dtype=torch.long), torch.ones(5), std_norm="global")
    assert (equal == 0).all()
    with pytest.raises(ValueError, match=r"^actor\.advantage\.std_norm"):
        group_advantages(torch.ones(1), torch.zeros(1), torch.ones(1), std_norm="batch")
    silent = group_advantages(torch.ones(2), torch.zeros(2), torch.zeros(2), length_weighted_mean=True)
    assert silent.isfinite().all()
