"""A user's loss: a function that takes its inputs by name, checked on an example before the first step."""

import inspect

import torch
from torch import Tensor

from areal_like.algorithms import losses
from areal_like.algorithms.losses import Inputs, Loss
from areal_like.algorithms.statistics import TOKENS, Statistics, statistics
from areal_like.config.checks.user_code import LOSS_INPUTS
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.data.user_code import SearchFolders, config_error, describe_error, load_object
from areal_like.process.errors import FinalFailure

METRIC_PREFIX = "train/own/"
GROWTH_TOLERANCE = 0.2
"""Allowed deviation from 2 of a sum's growth when its input is doubled: what is computed over the tokens of a
micro-batch, such as a standard deviation, changes slightly."""


class InvalidLoss(Exception):
    """The function did not return a loss."""


class UserLoss:
    """The function returns a sum over tokens; or the loss of each token, which is weighted and summed here; or a Loss
    with its own statistics. Entropy bonus and KL penalty are added, as for built-in losses; a function that takes
    `reference_logprobs` must add a KL penalty in the loss itself."""

    needs_all = True

    def __init__(
        self, config: PPOActorConfig, places: SearchFolders, has_reference: bool, device: torch.device
    ) -> None:
        self._config, self._name = config, config.loss
        self._function = load_object("actor.loss", config.loss, places)
        self._takes = self._parameters()
        self.needs_proximal = "proximal_logprobs" in self._takes
        self._adds_kl = has_reference and config.kl_in == "loss" and "reference_logprobs" not in self._takes
        self.reports = {name: f"{METRIC_PREFIX}{name}" for name in self._check_on_example(has_reference, device)}

    def __call__(self, inputs: Inputs) -> Loss:
        config = self._config
        try:
            result = self._call(inputs)
        except Exception as fault:
            raise FinalFailure(f"actor.loss: {self._name} failed: {_error_text(fault)}") from fault
        extra, sums = losses.entropy_and_kl(
            inputs.logprobs,
            inputs.old_logprobs,
            inputs.loss_mask,
            weights=inputs.weights,
            entropy=inputs.entropy,
            entropy_coef=config.entropy_coef,
            reference_logprobs=inputs.reference_logprobs if self._adds_kl else None,
            kl_coef=config.kl_ctl,
            kl_estimator=config.kl_estimator,
        )
        extra_statistics = statistics(inputs.loss_mask, sums, {})
        return Loss(
            result.total + extra,
            Statistics({**result.statistics.sums, **extra_statistics.sums}, dict(result.statistics.maxima)),
        )

    def _call(self, inputs: Inputs) -> Loss:
        """Calls the function; raises InvalidLoss where the result is not a loss."""
        inputs_by_name = {**inputs._asdict(), "kl_ctl": self._config.kl_ctl}
        arguments = {name: value for name, value in inputs_by_name.items() if name in self._takes}
        result = self._function(**arguments, **self._config.loss_args)
        if isinstance(result, Tensor):
            if result.shape == inputs.logprobs.shape and result.dim():
                per_token = torch.where(inputs.loss_mask, result, 0.0)
                result = (per_token * inputs.weights).sum()
            result = Loss(result, statistics(inputs.loss_mask, {}, {}))
        if not isinstance(result, Loss) or not isinstance(result.total, Tensor) or result.total.dim():
            kind = (
                f"a tensor of shape {list(result.total.shape)}" if isinstance(result, Loss) else type(result).__name__
            )
            raise InvalidLoss(f"it returned {kind}; return a sum, the loss of each token, or a Loss")
        if not result.total.requires_grad:
            raise InvalidLoss("what it returned has no gradient; compute it from logprobs or entropy")
        return result

    def _parameters(self) -> frozenset[str]:
        """The inputs that the function takes. Its other parameters must be in `actor.loss_args`."""
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError) as unreadable:
            raise config_error(
                "actor.loss", f"{self._name} cannot be used as a loss function", unreadable
            ) from unreadable
        if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            takes = frozenset(LOSS_INPUTS)
        else:
            takes = frozenset(signature.parameters) & frozenset(LOSS_INPUTS)
        try:
            signature.bind(**dict.fromkeys(takes), **self._config.loss_args)
        except TypeError as misfit:
            given = f"a loss is given {', '.join(LOSS_INPUTS)}, and actor.loss_args"
            raise config_error("actor.loss", f"{self._name} cannot be called: {misfit}; {given}", misfit) from misfit
        return takes

    def _check_on_example(self, has_reference: bool, device: torch.device) -> list[str]:
        """Calls it with two answers of three and two tokens, then with each of them twice. Returns the names of its
        statistics: metrics need the same names on every rank, also on one without training signal."""
        with torch.random.fork_rng(devices=[]):
            try:
                result, once = self._loss_and_gradients(example(has_reference, device))
                twice, once_more, twice_more = (
                    self._loss_and_gradients(example(has_reference, device, copies))[1] for copies in (2, 1, 2)
                )
            except Exception as fault:
                message = f"{self._name} fails on a small example: {_error_text(fault)}"
                raise config_error("actor.loss", message, fault) from fault
        if not result.total.isfinite():
            raise config_error("actor.loss", f"{self._name} returns {result.total.item()} for a small example")
        # Not meaningful for a function that is random or keeps state.
        is_steady = all(map(torch.allclose, (*once, *twice), (*once_more, *twice_more)))
        growths = [
            (after.sum() / before.sum()).item() for before, after in zip(once, twice, strict=True) if before.any()
        ]
        if is_steady and (wrong_growths := [growth for growth in growths if abs(growth - 2) > GROWTH_TOLERANCE]):
            raise config_error(
                "actor.loss",
                f"{self._name} is not a sum over tokens: for twice the answers its gradient is {wrong_growths[0]:.3g} "
                "times as large, and not 2 times; return a sum, or the loss of each token, never a mean: the result is "
                "divided by the count of the whole batch",
            )
        return sorted(set(result.statistics.sums) - {TOKENS})

    def _loss_and_gradients(self, inputs: Inputs) -> tuple[Loss, list[Tensor]]:
        """The loss, and the absolute gradients of log-probabilities and entropy."""
        result = self._call(inputs)
        torch.autograd.backward(result.total)
        leaves = [leaf for leaf in (inputs.logprobs, inputs.entropy) if leaf is not None]
        return result, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.abs() for leaf in leaves]


def _error_text(fault: Exception) -> str:
    return str(fault) if isinstance(fault, InvalidLoss) else describe_error(fault)


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
