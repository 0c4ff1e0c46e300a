"""AdamW with bfloat16 moments: many tensors by one kernel, with the values of a slow version for one tensor."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from areal_like.training import adamw_bf16
from areal_like.training.adamw_bf16 import AdamWBf16

LR, BETA1, BETA2, EPS, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1
SHAPES = ((12, 8), (7,), (33, 5, 3), (1,), (129, 17), (0, 4))


class KernelCount(TorchDispatchMode):
    """Counts operators on more than one number, except those that only make views or reserve memory."""

    def __init__(self) -> None:
        super().__init__()
        self.num: int = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_free = operator.is_view or "empty" in operator.name()
        first = args[0] if args else None
        if not is_free and not (isinstance(first, Tensor) and first.dim() == 0):
            self.num += 1
        return operator(*args, **(kwargs or {}))


def optimizer_of(weights: list[nn.Parameter]) -> AdamWBf16:
    return AdamWBf16(weights, LR, (BETA1, BETA2), EPS, DECAY)


def slow_step(weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: int) -> tuple[Tensor, ...]:
    """One tensor: the new weight and moments."""
    new_mean = mean.float().lerp(gradient.float(), 1 - BETA1)
    new_square = (square.float() * BETA2).addcmul(gradient.float(), gradient.float(), value=1 - BETA2)
    deviation = (new_square / (1 - BETA2**step)).sqrt() + EPS
    new_weight = (weight.float() * (1 - LR * DECAY)).addcdiv(new_mean, deviation, value=-LR / (1 - BETA1**step))
    return (
        rounded(new_weight, weight.dtype, step),
        rounded(new_mean, mean.dtype, step),
        rounded(new_square, square.dtype, step),
    )


def rounded(value: Tensor, dtype: torch.dtype, step: int) -> Tensor:
    if dtype == torch.float32:
        return value
    places = torch.arange(value.numel()).view(value.shape) * 0x9E3779B1 & 0xFFFFFFFF
    dither = (places >> 7) + (step * 0x9E37 & 0xFFFF) & 0xFFFF
    bits = (value.view(torch.int32).long() & 0xFFFFFFFF) + dither
    return (bits >> 16).to(torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_once", [1 << 25, 1 << 9])
def test_all_tensors_together_are_updated_as_one_by_one(monkeypatch, dtype, at_once):
    """To the last bit, also where tensors are cut into parts."""
    monkeypatch.setattr(adamw_bf16, "ELEMENTS_AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in SHAPES]
    optimizer = optimizer_of(weights)
    expected = [
        (weight.detach().clone(), *(torch.zeros(weight.shape, dtype=torch.bfloat16) for _ in range(2)))
        for weight in weights
    ]
    for step in range(1, 5):
        grads = [torch.randn(shape, generator=draw).to(dtype) for shape in SHAPES]
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad
        expected = [
            slow_step(value, grad, mean, square, step)
            for grad, (value, mean, square) in zip(grads, expected, strict=True)
        ]
        optimizer.step()
    for weight, (value, mean, square) in zip(weights, expected, strict=True):
        state = optimizer.state[weight]
        assert torch.equal(weight, value)
        assert torch.equal(state["exp_avg"], mean) and torch.equal(state["exp_avg_sq"], square)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_takes_as_many_kernels_for_100_tensors_as_for_one(dtype):
    """25 for each tensor would be 2500 starts of kernels."""

    def kernels(num: int) -> int:
        weights = [nn.Parameter(torch.ones(8, 4, dtype=dtype)) for _ in range(num)]
        optimizer = optimizer_of(weights)
        for _ in range(2):  # the first step makes the state
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            count = KernelCount()
            with count:
                optimizer.step()
        return count.num

    assert kernels(100) == kernels(1) < 30
