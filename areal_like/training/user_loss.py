"""A loss of the user's: a function that asks by name for what it needs, tried out before the first step."""

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
"""How far from 2 the growth of a sum may be when there is twice as much to add up: what is taken over the tokens at
hand, such as a deviation, moves a little."""


class InvalidLoss(Exception):
    """What the function returned is no loss."""


class UserLoss:
    """What the function returns is a sum over tokens; or the loss of each token, then weighted and added up here; or a
    Loss with statistics of its own. Entropy bonus and KL penalty are added, as for our losses; where the function takes
    `reference_logprobs`, a penalty in the loss is left to it."""

    needs_all = True

    def __init__(
        self, config: PPOActorConfig, places: SearchFolders, has_reference: bool, device: torch.device
    ) -> None:
        self._config, self._name = config, config.loss
        self._function = load_object("actor.loss", config.loss, places)
        self._takes = self._parameters()
        self.needs_proximal = "proximal_logprobs" in self._takes
        self._adds_kl = has_reference and config.kl_in == "loss" and "reference_logprobs" not in self._takes
        self.reports = {name: f"{METRIC_PREFIX}{name}" for name in self._try_out(has_reference, device)}

    def __call__(self, inputs: Inputs) -> Loss:
        config = self._config
        try:
            found = self._own(inputs)
        except Exception as fault:
            raise FinalFailure(f"actor.loss: {self._name} failed: {_error_text(fault)}") from fault
        more, sums = losses.entropy_and_kl(
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
        known = statistics(inputs.loss_mask, sums, {})
        return Loss(
            found.total + more,
            Statistics({**found.statistics.sums, **known.sums}, dict(found.statistics.maxima)),
        )

    def _own(self, inputs: Inputs) -> Loss:
        """As a Loss; raises Unfit for what is none."""
        given = {**inputs._asdict(), "kl_ctl": self._config.kl_ctl}
        wanted = {name: value for name, value in given.items() if name in self._takes}
        found = self._function(**wanted, **self._config.loss_args)
        if isinstance(found, Tensor):
            if found.shape == inputs.logprobs.shape and found.dim():
                kept = torch.where(inputs.loss_mask, found, 0.0)
                found = (kept * inputs.weights).sum()
            found = Loss(found, statistics(inputs.loss_mask, {}, {}))
        if not isinstance(found, Loss) or not isinstance(found.total, Tensor) or found.total.dim():
            what = f"a tensor of shape {list(found.total.shape)}" if isinstance(found, Loss) else type(found).__name__
            raise InvalidLoss(f"it returned {what}, and not a sum, the loss of each token, or a Loss")
        if not found.total.requires_grad:
            raise InvalidLoss("what it returned has no gradient: it must be computed from logprobs or entropy")
        return found

    def _parameters(self) -> frozenset[str]:
        """Which inputs the function asks for. The rest of what it asks for must be in `actor.loss_args`."""
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError) as unreadable:
            raise config_error(
                "actor.loss", f"{self._name} is no function that a loss could be", unreadable
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

    def _try_out(self, has_reference: bool, device: torch.device) -> list[str]:
        """On two answers of three and two tokens, then on each of them twice. Returns what it reports of its own: the
        same names on every rank, also on one that has nothing to train on."""
        with torch.random.fork_rng(devices=[]):
            try:
                found, once = self._learn(example(has_reference, device))
                twice, once_more, twice_more = (
                    self._learn(example(has_reference, device, copies))[1] for copies in (2, 1, 2)
                )
            except Exception as fault:
                message = f"{self._name} fails on a small example: {_error_text(fault)}"
                raise config_error("actor.loss", message, fault) from fault
        if not found.total.isfinite():
            raise config_error("actor.loss", f"{self._name} gives {found.total.item()} for a small example")
        # Of a function that draws at random, or remembers what it was given, this tells nothing.
        is_steady = all(map(torch.allclose, (*once, *twice), (*once_more, *twice_more)))
        growths = [
            (after.sum() / before.sum()).item() for before, after in zip(once, twice, strict=True) if before.any()
        ]
        if is_steady and (wrong := [growth for growth in growths if abs(growth - 2) > GROWTH_TOLERANCE]):
            raise config_error(
                "actor.loss",
                f"{self._name} gives no sum over tokens: for twice the answers its gradient is {wrong[0]:.3g} times as "
                "large, and not 2 times; return a sum, or the loss of each token, and never a mean: what is returned "
                "is divided by the count of the whole batch",
            )
        return sorted(set(found.statistics.sums) - {TOKENS})

    def _learn(self, inputs: Inputs) -> tuple[Loss, list[Tensor]]:
        """And the sizes of its gradients, by log-probabilities and by entropy."""
        found = self._own(inputs)
        torch.autograd.backward(found.total)
        leaves = [leaf for leaf in (inputs.logprobs, inputs.entropy) if leaf is not None]
        return found, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.abs() for leaf in leaves]


def _error_text(fault: Exception) -> str:
    return str(fault) if isinstance(fault, InvalidLoss) else describe_error(fault)


def example(has_reference: bool, device: torch.device, copies: int = 1) -> Inputs:
    """Two answers, the second one worse than the first, so many times over."""

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
