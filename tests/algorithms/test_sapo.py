"""SAPO's loss against a slow version, and where its gate is steepest."""

import math

import pytest
import torch

from areal_like.algorithms import losses
from tests.support.every_loss import compare_per_token, policy_loss


def slow(logprob: float, old: float, advantage: float, tau_pos: float, tau_neg: float) -> tuple[float, float]:
    ratio, tau = math.exp(logprob - old), tau_pos if advantage > 0 else tau_neg
    sigmoid = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -advantage * sigmoid * 4 / tau, -advantage * 4 * sigmoid * (1 - sigmoid) * ratio


@pytest.mark.parametrize("taus", [(1.0, 1.05), (0.5, 3.0)])
def test_sapo_equals_a_slow_version(taus) -> None:
    given = {} if taus == (1.0, 1.05) else dict(zip(("tau_pos", "tau_neg"), taus, strict=True))
    compare_per_token("sapo", lambda *token: slow(*token, *taus), **given)


def test_on_policy_sapo_has_the_gradient_of_the_policy_gradient() -> None:
    """Where it is steepest: 4 / tau times the slope of the sigmoid at 0 is 1."""
    logprobs, advantages = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([2.0, -3.0])
    inputs = losses.Inputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        proximal_logprobs=None,
        reference_logprobs=None,
        advantages=advantages,
        entropy=None,
        loss_mask=torch.ones(2, dtype=torch.bool),
        cu_seqlens=torch.tensor([0, 2]),
        weights=torch.ones(2),
    )
    policy_loss("sapo", inputs).total.backward()
    torch.testing.assert_close(logprobs.grad, -advantages)
