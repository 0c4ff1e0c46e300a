"""All built-in losses on the same random tokens, for common properties."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import settings
from torch import Tensor

from areal_like.algorithms import losses
from areal_like.algorithms.losses.by_name import accepts, by_name
from areal_like.algorithms.losses.entropy_and_kl import with_entropy_and_kl
from areal_like.config.built_in import LOSS_KEYS, LOSSES
from areal_like.config.sections.actor import PPOActorConfig, RatioConfig

Tokens = dict[str, Tensor]
GRADIENTS = ("logprobs", "entropy", "values")
FIXED_LENGTH = 7
MORE = ("entropy_coef", "kl_ctl", "kl_estimator")
"""Options of every policy loss."""

_DECOUPLED: dict[str, Any] = {"use_decoupled_loss": True, "behav_imp_weight_cap": 3.0, "c_clip": 3.0}
_SEQUENCE = {"level": "sequence", "length_norm": True}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "decoupled": ("ppo", _DECOUPLED),
    "gspo": ("ppo", {"ratio": _SEQUENCE, "eps_clip": 0.01}),
    "product of a sequence": (
        "ppo",
        {**_DECOUPLED, "ratio": {"level": "sequence"}, "behav_imp_weight_level": "sequence"},
    ),
    "masked ratios": ("importance_sampling", {"ratio": {"mask_high": 2.0, "mask_low": 0.5, "sequence_mask_low": 0.3}}),
    "masked sequences of ratios": (
        "importance_sampling",
        {"ratio": {**_SEQUENCE, "mask_high": 1.5, "sequence_mask_low": 0.2}},
    ),
    "truncated": (
        "ppo",
        {"use_decoupled_loss": True, "behav_imp_weight_cap": 2.0, "behav_imp_weight_mode": "truncate"},
    ),
    "floor": ("ppo", {"use_decoupled_loss": True, "behav_imp_weight_cap": 2.0, "behav_imp_weight_floor": 0.5}),
    "masked sequences": ("ppo", {**_DECOUPLED, "behav_imp_weight_level": "sequence"}),
    "truncated by the mean": (
        "ppo",
        {
            "use_decoupled_loss": True,
            "behav_imp_weight_cap": 1.2,
            "behav_imp_weight_floor": 0.8,
            "behav_imp_weight_mode": "truncate",
            "behav_imp_weight_level": "geometric",
        },
    ),
    "narrow cispo": ("cispo", {"eps_low": 0.3, "eps_high": 0.2}),
    "narrow dppo": ("dppo", {"dppo_mask_low": 0.02, "dppo_mask_high": 0.05, "kl_tau": 0.5}),
    "entropy bonus": ("ppo", {"entropy_coef": 0.05}),
    **{
        f"kl in the loss {estimator}": ("ppo", {"kl_ctl": 0.3, "kl_estimator": estimator})
        for estimator in ("k1", "k2", "k3")
    },
}
"""Name -> the loss and keys of `actor`."""
POLICY: dict[str, tuple[str, dict[str, Any]]] = {**{name: (name, {}) for name in LOSSES}, **VARIANTS}
STOPPED_GRADIENT = ("cispo", "narrow cispo")
"""Losses whose gradient is not that of their value."""
OTHERS = ("cross_entropy", "value", "value without a clip")
EVERY = (*POLICY, *OTHERS)


def policy_loss(name: str, inputs: losses.Inputs, **options: Any) -> losses.Loss:
    """A built-in loss with keys of `actor` and its own arguments; the KL penalty, if any, is in the loss."""
    module, _, thing = LOSSES[name].partition(":")
    function = getattr(importlib.import_module(module), thing)
    more: dict[str, Any] = {"entropy_coef": 0.0, "kl_ctl": 0.0, "kl_estimator": "k1"}
    more = {option: options.pop(option, default) for option, default in more.items()}
    config: Any = PPOActorConfig
    actor = config(path="", ratio=RatioConfig(**options.pop("ratio", {})))
    if not options.pop("use_decoupled_loss", False):
        inputs = inputs._replace(proximal_logprobs=None)
    keys = {key: options.pop(key, getattr(actor, key)) for key in LOSS_KEYS if accepts(function, key)}
    return with_entropy_and_kl(by_name(function, {**keys, **options}), inputs, **more)


def inputs_of(tokens: Tokens, cu_seqlens: Tensor, weights: Tensor | None = None) -> losses.Inputs:
    return losses.Inputs(
        logprobs=tokens["logprobs"],
        old_logprobs=tokens["old"],
        proximal_logprobs=tokens["proximal"],
        reference_logprobs=tokens["reference"],
        advantages=tokens["advantages"],
        entropy=tokens["entropy"],
        loss_mask=tokens["mask"],
        cu_seqlens=cu_seqlens,
        weights=torch.ones_like(tokens["advantages"]) if weights is None else weights,
    )


def compute(name: str, tokens: Tokens, cu_seqlens: Tensor, weights: Tensor | None = None) -> losses.Loss:
    mask = tokens["mask"]
    if name == "cross_entropy":
        return losses.cross_entropy(tokens["logprobs"], mask, weights=weights)
    if name.startswith("value"):
        clip = None if "without" in name else 0.3
        old, returns = tokens["old_values"], tokens["returns"]
        return losses.value(tokens["values"], old, returns, mask, eps_clip=clip, weights=weights)
    loss, options = POLICY[name]
    return policy_loss(loss, inputs_of(tokens, cu_seqlens, weights), **options)


def compare_per_token(
    name: str, slow: Callable[..., tuple[float, float]], *more: str, **options: Any
) -> dict[str, float]:
    """That a policy loss equals a slow version, which gives a token's loss and its slope from log-probability, old
    log-probability, advantage, and `more` of its values. Returns the sums of the loss's statistics."""
    sizes = [8, 9, 7, 12, 30]
    tokens = draw_tokens(sizes, torch.float64)
    logprobs = tokens["logprobs"].clone().requires_grad_()
    actual = policy_loss(name, inputs_of({**tokens, "logprobs": logprobs}, cumulative(sizes)), **options)
    (gradient,) = torch.autograd.grad(actual.total, logprobs)
    values = zip(*(tokens[each].tolist() for each in ("logprobs", "old", "advantages", *more)), strict=True)
    expected = [
        slow(*each) if counts else (0.0, 0.0) for each, counts in zip(values, tokens["mask"].tolist(), strict=True)
    ]
    torch.testing.assert_close(actual.total.item(), sum(loss for loss, _ in expected))
    torch.testing.assert_close(gradient, torch.tensor([slope for _, slope in expected], dtype=torch.float64))
    return {key: value.item() for key, value in actual.statistics.sums.items()}


def draw_tokens(sizes: list[int], dtype: torch.dtype = torch.float32) -> Tokens:
    """The same for the same sizes. Policies differ by as much as to be clipped, capped and masked here and there."""
    count = sum(sizes)
    generator = torch.Generator().manual_seed(1000 * len(sizes) + count)

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(count, generator=generator, dtype=dtype)

    logprobs = normal() - 2
    return {
        "logprobs": logprobs,
        "old": logprobs + normal(0.5),
        "proximal": logprobs + normal(0.3),
        "reference": logprobs + normal(0.7),
        "advantages": normal(),
        "entropy": normal().abs(),
        "values": normal(),
        "old_values": normal(),
        "returns": normal(),
        "mask": torch.rand(count, generator=generator) < 0.7,
    }


def cumulative(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def part_of(tokens: Tokens, sizes: list[int], rows: list[int]) -> tuple[Tokens, Tensor]:
    """The batch of these sequences, in this order."""
    starts = cumulative(sizes)
    places = [torch.arange(int(starts[row]), int(starts[row + 1])) for row in rows]
    chosen = torch.cat([*places, torch.zeros(0, dtype=torch.long)])
    return {name: x[chosen] for name, x in tokens.items()}, cumulative([sizes[row] for row in rows])


def with_gradient(tokens: Tokens) -> Tokens:
    return {**tokens, **{name: tokens[name].clone().requires_grad_() for name in GRADIENTS}}


def gradients(total: Tensor, tokens: Tokens) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        total, [tokens[name] for name in GRADIENTS], materialize_grads=True, allow_unused=True, retain_graph=True
    )


def share(part: int) -> settings:
    """Of the examples that a profile tries: what has many parameters tries fewer of each."""
    return settings(max_examples=max(5, settings().max_examples // part))
