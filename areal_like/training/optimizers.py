"""How gradients change weights: AdamW, and gradient descent with momentum."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from areal_like.config.optimizer import OptimizerConfig


class DecoupledSGD(torch.optim.SGD):
    """Gradient descent with momentum whose weight decay shrinks the weights by themselves, as AdamW's does, instead of
    going through the momentum."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, **settings: Any) -> None:
        super().__init__(params, lr=lr, **settings)
        self.decoupled_decay = weight_decay

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self.decoupled_decay:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - group["lr"] * self.decoupled_decay)
        return super().step(closure)


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The learning rate is set anew before every step, by the schedule."""
    if config.type == "adam":
        return torch.optim.AdamW(
            parameters,
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
    if config.type == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        return DecoupledSGD(
            parameters, config.lr, config.weight_decay, momentum=config.momentum, nesterov=nesterov, foreach=True
        )
    raise ValueError(f"optimizer.type: {config.type} is not built; take adam or sgd")
