"""All built-in losses on the same random tokens, for common properties."""

from typing import Any

import torch
from hypothesis import settings
from torch import Tensor

from areal_like.algorithms import losses

Tokens = dict[str, Tensor]
GRADIENTS = ("logprobs", "entropy", "values")
FIXED_LENGTH = 7

_KEPT = {"reference_logprobs": "reference", "entropy": "entropy"}
_DECOUPLED: dict[str, Any] = {"proximal_logprobs": "proximal", "behav_imp_weight_cap": 3.0, "c_clip": 3.0}
_SEQUENCE: dict[str, Any] = {"ratio_level": "sequence", "ratio_length_norm": True}
PPO: dict[str, dict[str, Any]] = {
    "ppo": {},
    "decoupled": _DECOUPLED,
    "gspo": {**_SEQUENCE, "eps_clip": 0.01},
    "product of a sequence": {**_DECOUPLED, "ratio_level": "sequence", "behav_imp_weight_level": "sequence"},
    "importance_sampling": {"eps_clip": None, "mask_high": 2.0, "mask_low": 0.5, "sequence_mask_low": 0.3},
    "importance_sampling of sequences": {"eps_clip": None, **_SEQUENCE, "mask_high": 1.5, "sequence_mask_low": 0.2},
    "truncated": {"proximal_logprobs": "proximal", "behav_imp_weight_cap": 2.0, "behav_imp_weight_mode": "truncate"},
    "floor": {"proximal_logprobs": "proximal", "behav_imp_weight_cap": 2.0, "behav_imp_weight_floor": 0.5},
    "masked sequences": {**_DECOUPLED, "behav_imp_weight_level": "sequence"},
    "truncated by the mean": {
        "proximal_logprobs": "proximal",
        "behav_imp_weight_cap": 1.2,
        "behav_imp_weight_floor": 0.8,
        "behav_imp_weight_mode": "truncate",
        "behav_imp_weight_level": "geometric",
    },
    "entropy bonus": {"entropy": "entropy", "entropy_coef": 0.05},
    **{
        f"kl in the loss {estimator}": {**_KEPT, "kl_coef": 0.3, "kl_estimator": estimator}
        for estimator in ("k1", "k2", "k3")
    },
}
"""Name -> options; a text is the name of tokens."""
OTHERS = ("cross_entropy", "value", "value without a clip")
EVERY = (*PPO, *OTHERS)


def compute(name: str, tokens: Tokens, cu_seqlens: Tensor, weights: Tensor | None = None) -> losses.Loss:
    mask = tokens["mask"]
    if name == "cross_entropy":
        return losses.cross_entropy(tokens["logprobs"], mask, weights=weights)
    if name.startswith("value"):
        clip = None if "without" in name else 0.3
        old, returns = tokens["old_values"], tokens["returns"]
        return losses.value(tokens["values"], old, returns, mask, eps_clip=clip, weights=weights)
    options: dict[str, Any] = {
        option: tokens[value] if isinstance(value, str) and value in tokens else value
        for option, value in PPO[name].items()
    }
    return losses.ppo(
        tokens["logprobs"], tokens["old"], tokens["advantages"], mask, weights=weights, cu_seqlens=cu_seqlens, **options
    )


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
