"""Losses, each a sum and its statistics, one file per kind; `areal_like.config.built_in` lists the policy losses."""

from areal_like.algorithms.losses.base import LOG_RATIO_LIMIT, Inputs, Loss
from areal_like.algorithms.losses.critic import value
from areal_like.algorithms.losses.mismatch import off_policy
from areal_like.algorithms.losses.preference import pairwise
from areal_like.algorithms.losses.supervised import cross_entropy

__all__ = [
    "LOG_RATIO_LIMIT",
    "Inputs",
    "Loss",
    "cross_entropy",
    "off_policy",
    "pairwise",
    "value",
]
