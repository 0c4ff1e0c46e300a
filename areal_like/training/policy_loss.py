"""The policy loss that `actor.loss` names, built in or the user's, with its arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_like.algorithms.losses import Inputs, Loss
from areal_like.algorithms.losses.base import InvalidLoss, PolicyLoss, as_loss
from areal_like.algorithms.losses.by_name import accepts, by_name
from areal_like.algorithms.losses.entropy_and_kl import with_entropy_and_kl
from areal_like.algorithms.statistics import TOKENS, Statistics
from areal_like.config.built_in import LOSS_KEYS
from areal_like.config.checks.user_code import LOSS_INPUTS
from areal_like.config.sections.actor import PPOActorConfig
from areal_like.data.user_code import SearchFolders, config_error, is_built_in, load_built_in, load_object
from areal_like.process.errors import FinalFailure
from areal_like.training.loss_example import check_user_loss, example, learns_without_advantages, loss_error_text

METRICS, OWN_METRICS = "train/", "train/own/"
SHARED = ("clip_fraction", "taken_out", "truncated")
"""Statistics of several built-in losses, whose metrics are `train/NAME`. Those of a single one, and of a user's, are
`train/own/NAME`."""


class ActorLoss:
    """The loss of a micro-batch: that of the function, the entropy bonus and the KL penalty."""

    reports: dict[str, str]
    """Statistics that become metrics, per token in the loss: statistic -> metric."""
    needs_proximal: bool
    """Whether later updates need the log-probabilities of the policy at the start of the step."""
    needs_all: bool
    """Whether tokens with advantage 0 affect the loss."""

    def __init__(self, config: PPOActorConfig, loss: PolicyLoss, kl_ctl: float) -> None:
        self._config, self._loss, self._kl_ctl = config, loss, kl_ctl

    def __call__(self, inputs: Inputs) -> Loss:
        config = self._config
        return with_entropy_and_kl(
            self._loss,
            inputs,
            entropy_coef=config.entropy_coef,
            kl_ctl=self._kl_ctl,
            kl_estimator=config.kl_estimator,
        )


class BuiltInLoss(ActorLoss):
    """A parameter without a default that is called like a key of `actor` gets its value; the others are in
    `actor.loss_args`."""

    def __init__(self, config: PPOActorConfig, has_reference: bool, device: torch.device) -> None:
        function = load_built_in("actor.loss", "actor.loss", config.loss)
        arguments = {key: getattr(config, key) for key in LOSS_KEYS if accepts(function, key)} | config.loss_args
        self.needs_proximal = accepts(function, "proximal_logprobs") and config.use_decoupled_loss
        if accepts(function, "proximal_logprobs") and not config.use_decoupled_loss:
            arguments["proximal_logprobs"] = None
        super().__init__(
            config, by_name(function, arguments), config.kl_ctl if has_reference and config.kl_in == "loss" else 0.0
        )
        inputs = example(has_reference, device)
        known = _statistics_of(as_loss(self._loss(inputs), inputs))
        self.reports = {name: f"{METRICS if name in SHARED else OWN_METRICS}{name}" for name in known}
        adds = self._kl_ctl > 0 or config.entropy_coef > 0
        self.needs_all = adds or learns_without_advantages(self._loss, device)


class UserLoss(ActorLoss):
    """A function that takes `reference_logprobs` must add a KL penalty in the loss itself."""

    needs_all = True

    def __init__(
        self, config: PPOActorConfig, places: SearchFolders, has_reference: bool, device: torch.device
    ) -> None:
        self._name = config.loss
        function = load_object("actor.loss", config.loss, places)
        takes = self._inputs_of(function, config.loss_args)
        arguments = {**({"kl_ctl": config.kl_ctl} if "kl_ctl" in takes else {}), **config.loss_args}
        adds_kl = has_reference and config.kl_in == "loss" and "reference_logprobs" not in takes
        super().__init__(config, _with_gradient(by_name(function, arguments)), config.kl_ctl if adds_kl else 0.0)
        self.needs_proximal = "proximal_logprobs" in takes
        known = _statistics_of(check_user_loss(self._name, self._loss, has_reference, device))
        self.reports = {name: f"{OWN_METRICS}{name}" for name in known}

    def __call__(self, inputs: Inputs) -> Loss:
        try:
            return super().__call__(inputs)
        except Exception as fault:
            raise FinalFailure(f"actor.loss: {self._name} failed: {loss_error_text(fault)}") from fault

    def _inputs_of(self, function: Callable[..., Any], loss_args: dict[str, Any]) -> frozenset[str]:
        """The inputs that the function takes. Its other parameters must be in `actor.loss_args`."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as unreadable:
            message = f"{self._name} cannot be used as a loss function"
            raise config_error("actor.loss", message, unreadable) from unreadable
        given = frozenset(name for name in LOSS_INPUTS if accepts(function, name))
        try:
            signature.bind(**dict.fromkeys(given), **loss_args)
        except TypeError as misfit:
            hint = f"a loss is given {', '.join(LOSS_INPUTS)}, and actor.loss_args"
            raise config_error("actor.loss", f"{self._name} cannot be called: {misfit}; {hint}", misfit) from misfit
        return given


def actor_loss(config: PPOActorConfig, places: SearchFolders, has_reference: bool, device: torch.device) -> ActorLoss:
    """`places` are the folders in which the user's code is searched."""
    if is_built_in(config.loss):
        return BuiltInLoss(config, has_reference, device)
    return UserLoss(config, places, has_reference, device)


def _statistics_of(loss: Loss) -> list[str]:
    return sorted(set(loss.statistics.sums) - {TOKENS})


def _with_gradient(loss: PolicyLoss) -> PolicyLoss:
    """Refuses a result from which nothing can be learned."""

    def checked(inputs: Inputs) -> Tensor | Loss:
        result = as_loss(loss(inputs), inputs)
        if not result.total.requires_grad:
            raise InvalidLoss("what it returned has no gradient; compute it from logprobs or entropy")
        return result._replace(statistics=_as_scalars(result.statistics, inputs.logprobs.device))

    return checked


def _as_scalars(given: Statistics, device: torch.device) -> Statistics:
    """Statistics that a user's function computed itself may be numbers of Python, or tensors in host memory."""

    def scalars(values: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            name: torch.as_tensor(value).detach().to(device, torch.float64, non_blocking=True).sum()
            for name, value in values.items()
        }

    return Statistics(scalars(given.sums), scalars(given.maxima))
