"""Losses, each a sum and its statistics, one file per kind."""

from areal_like.algorithms.losses.base import LOG_RATIO_LIMIT, Inputs, Loss
from areal_like.algorithms.losses.critic import value
from areal_like.algorithms.losses.entropy_and_kl import entropy_and_kl
from areal_like.algorithms.losses.mismatch import off_policy
from areal_like.algorithms.losses.policy import ppo
from areal_like.algorithms.losses.preference import pairwise
from areal_like.algorithms.losses.supervised import cross_entropy

__all__ = [
    "LOG_RATIO_LIMIT",
    "Inputs",
    "Loss",
    "cross_entropy",
    "entropy_and_kl",
    "off_policy",
    "pairwise",
    "ppo",
    "value",
]
