"""The result of optimizer steps and their metrics."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class OptimizerStep(NamedTuple):
    """`loss` is that of the whole batch, `grad_norm` the norm before clipping."""

    loss: float
    grad_norm: float
    lr: float
    is_skipped: bool
    is_overflow: bool = False
    """Skipped because gradients exceeded the range of float16: the loss scale was too large."""
    loss_scale: float = 1.0
    compiled_layers: int | None = None
    """None where none was to be compiled."""


def optimizer_metrics(group: str, updates: Sequence[OptimizerStep]) -> dict[str, float]:
    """Of the optimizer steps of one training step, as metrics of a group (`train`, `critic`)."""
    measured = [update for update in updates if not update.is_overflow]
    overflows = len(updates) - len(measured)
    metrics = {
        "loss": float(np.mean([update.loss for update in updates])),
        "grad_norm": float(np.mean([update.grad_norm for update in measured or updates])),
        "lr": updates[-1].lr,
        "updates": float(sum(not update.is_skipped for update in updates)),
        "skipped_updates": float(sum(update.is_skipped for update in measured)),
    }
    if overflows or updates[-1].loss_scale != 1.0:
        metrics |= {"overflows": float(overflows), "loss_scale": updates[-1].loss_scale}
    if updates[-1].compiled_layers is not None:
        metrics["compiled_layers"] = float(updates[-1].compiled_layers)
    return {f"{group}/{name}": value for name, value in metrics.items()}


def sum_of_squares(tensors: Sequence[Tensor]) -> Tensor:
    """In double precision. A GPU does it in few kernels, without double copies: those of `torch.linalg` make them."""
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(list(tensors), 2, dtype=torch.float64)).square().sum()
