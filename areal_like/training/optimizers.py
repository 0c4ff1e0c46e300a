"""Optimizers: AdamW with moments in full or half precision (`adamw_bf16.py`), SGD with momentum, and Muon
(`muon.py`)."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn

from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.training.adamw_bf16 import AdamWBf16
from areal_like.training.muon import Muon


class DecoupledSGD(torch.optim.SGD):
    """SGD with momentum and decoupled weight decay, as in AdamW: the decay does not go through the momentum."""

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


def make_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, tables: Collection[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """`tables` are embeddings and output heads. The schedule sets the learning rate before every step."""
    adam: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    nesterov = config.nesterov and config.momentum > 0
    if config.type == "adam":
        return torch.optim.AdamW(parameters, fused=True, **adam)
    if config.type == "adam_bf16":
        return AdamWBf16(parameters, **adam)
    if config.type == "muon":
        return Muon(parameters, tables, momentum=config.momentum, nesterov=nesterov, **adam)
    if config.type == "sgd":
        return DecoupledSGD(
            parameters, config.lr, config.weight_decay, momentum=config.momentum, nesterov=nesterov, foreach=True
        )
    raise ValueError(f"optimizer.type: {config.type} is not supported; use adam, adam_bf16, muon or sgd")


def embedding_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Embeddings and output heads: each row belongs to one token, so that they are not treated as matrices."""
    modules = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] in HEADS
    ]
    return [parameter for module in modules for parameter in module.parameters()]


HEADS = ("lm_head", "embed_out", "score")
"""Names of output heads in models of transformers."""
