"""Optimizers: AdamW with moments in full or half precision, SGD with momentum, and Muon (`muon.py`)."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.training.muon import Muon
from areal_like.training.row_shards import local_rows, local_tensor

GOLDEN_RATIO_32 = 0x9E3779B1
"""2**32 over the golden ratio: its multiples are evenly distributed."""


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


class AdamWBf16(torch.optim.Optimizer):
    """AdamW with moments in bfloat16, at half the memory. It computes in float32.

    Rounding to nearest would drop changes below 1/256 of a moment, always in the same direction: with a decay of 0.999
    a moment would never decrease. Moments are therefore rounded up or down with a dither, so that they are right on
    average over the steps. So are weights that are stored in bfloat16.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for kind in ("exp_avg", "exp_avg_sq"):
                state[kind] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1
        step, (beta1, beta2) = int(state["step"].item()), group["betas"]
        mean, square = (local_tensor(state[kind]) for kind in ("exp_avg", "exp_avg_sq"))
        weight, gradient = local_tensor(parameter), local_tensor(parameter.grad).float()
        dither = _dither(parameter, step)
        new_mean = mean.float().lerp_(gradient, 1 - beta1)
        new_square = square.float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        new_weight = weight.float().mul_(1 - group["lr"] * group["weight_decay"])
        deviation = (new_square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        new_weight.addcdiv_(new_mean, deviation, value=-group["lr"] / (1 - beta1**step))
        for stored, new in ((mean, new_mean), (square, new_square), (weight, new_weight)):
            stored.copy_(_rounded(new, dither) if stored.dtype == torch.bfloat16 else new)


def _dither(parameter: Tensor, step: int) -> Tensor:
    """A number below 2**16 for each element of this rank's part, added before the lower bits of the bfloat16 are cut
    off. It depends on the element's index and the step only, so that any number of ranks, and a resumed run, round the
    same; over the steps it visits all values evenly (golden ratio)."""
    part, (start, _) = local_tensor(parameter), local_rows(parameter)
    width = part[0].numel() if part.dim() and len(part) else 1
    shift = _wrapped(start * width * GOLDEN_RATIO_32)
    places = (
        torch.arange(part.numel(), device=part.device, dtype=torch.int32).mul_(_wrapped(GOLDEN_RATIO_32)).add_(shift)
    )
    return places.bitwise_right_shift_(7).add_(step * 0x9E37 & 0xFFFF).bitwise_and_(0xFFFF).view(part.shape)


def _wrapped(number: int) -> int:
    """As a signed 32-bit integer."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _rounded(value: Tensor, dither: Tensor) -> Tensor:
    """float32 -> bfloat16, rounded up where the dither carries into the upper bits."""
    bits = value.view(torch.int32) + dither
    return bits.bitwise_and_(-0x10000).view(torch.float32).to(torch.bfloat16)


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
