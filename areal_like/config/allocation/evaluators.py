"""Servers for evaluations alone, which `evaluator.backend` adds to those of training."""

from typing import TYPE_CHECKING

from areal_like.config.allocation.grammar import parse_server
from areal_like.config.allocation.models import generates, only_evaluates

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


def num_evaluators(config: "BaseExperimentConfig") -> int:
    """Their number; their indices follow those of the servers of training. None without training."""
    if not generates(config) or only_evaluates(config) or config.evaluator.backend is None:
        return 0
    dims = parse_server(config.evaluator.backend).dims
    return dims.data if dims else 1
