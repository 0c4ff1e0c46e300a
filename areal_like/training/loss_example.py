"""A policy loss is tried on a small example before the first step."""

import torch
from torch import Tensor

from areal_like.algorithms.losses import Inputs, Loss
from areal_like.algorithms.losses.base import InvalidLoss, PolicyLoss, as_loss
from areal_like.data.user_code import config_error, describe_error

GROWTH_TOLERANCE = 0.2
"""Allowed deviation from 2 of a sum's growth when its input is doubled: what is computed over the tokens of a
micro-batch, such as a standard deviation, changes slightly."""


def example(has_reference: bool, device: torch.device, copies: int = 1) -> Inputs:
    """Two answers, the second one worse than the first, `copies` times."""

    def tensor(*values: float) -> Tensor:
        return torch.tensor(values * copies, device=device)

    logprobs = tensor(-0.5, -1.0, -2.0, -0.1, -3.0)
    return Inputs(
        logprobs=logprobs.clone().requires_grad_(),
        old_logprobs=logprobs + tensor(0.1, -0.1, 0.2, 0.0, -0.3),
        proximal_logprobs=logprobs + tensor(0.0, 0.1, -0.1, 0.0, 0.1),
        reference_logprobs=logprobs + tensor(0.3, 0.0, -0.2, 0.1, 0.0) if has_reference else None,
        advantages=tensor(1.0, 1.0, 1.0, -1.0, -1.0),
        entropy=tensor(0.6, 1.1, 2.0, 0.3, 1.5).requires_grad_(),
        loss_mask=torch.ones(5 * copies, dtype=torch.bool, device=device),
        cu_seqlens=torch.tensor([0, *(5 * copy + end for copy in range(copies) for end in (3, 5))], device=device),
        weights=torch.ones(5 * copies, device=device),
    )


def learns_without_advantages(loss: PolicyLoss, device: torch.device) -> bool:
    """Whether tokens whose advantage is 0 have a gradient."""
    inputs = example(False, device)
    _, gradients = _loss_and_gradients(loss, inputs._replace(advantages=torch.zeros_like(inputs.advantages)))
    return any(bool(gradient.any()) for gradient in gradients)


def check_user_loss(name: str, loss: PolicyLoss, has_reference: bool, device: torch.device) -> Loss:
    """Calls it with two answers of three and two tokens, then with each of them twice. Returns its first result:
    metrics need the same names on every rank, also on one without training signal."""
    with torch.random.fork_rng(devices=[]):
        try:
            result, once = _loss_and_gradients(loss, example(has_reference, device))
            twice, once_more, twice_more = (
                _loss_and_gradients(loss, example(has_reference, device, copies))[1] for copies in (2, 1, 2)
            )
        except Exception as fault:
            message = f"{name} fails on a small example: {loss_error_text(fault)}"
            raise config_error("actor.loss", message, fault) from fault
    if not result.total.isfinite():
        raise config_error("actor.loss", f"{name} returns {result.total.item()} for a small example")
    # Not meaningful for a function that is random or keeps state.
    is_steady = all(map(torch.allclose, (*once, *twice), (*once_more, *twice_more)))
    growths = [(after.sum() / before.sum()).item() for before, after in zip(once, twice, strict=True) if before.any()]
    if is_steady and (wrong_growths := [growth for growth in growths if abs(growth - 2) > GROWTH_TOLERANCE]):
        raise config_error(
            "actor.loss",
            f"{name} is not a sum over tokens: for twice the answers its gradient is {wrong_growths[0]:.3g} "
            "times as large, and not 2 times; return a sum, or the loss of each token, never a mean: the result is "
            "divided by the count of the whole batch",
        )
    return result


def loss_error_text(fault: Exception) -> str:
    return str(fault) if isinstance(fault, InvalidLoss) else describe_error(fault)


def _loss_and_gradients(loss: PolicyLoss, inputs: Inputs) -> tuple[Loss, list[Tensor]]:
    """The loss, and the absolute gradients of log-probabilities and entropy."""
    result = as_loss(loss(inputs), inputs)
    torch.autograd.backward(result.total)
    leaves = [leaf for leaf in (inputs.logprobs, inputs.entropy) if leaf is not None]
    return result, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.abs() for leaf in leaves]
