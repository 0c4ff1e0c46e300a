"""AdamW with moments in bfloat16."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from areal_like.training.row_shards import local_rows, local_tensor

GOLDEN_RATIO_32 = 0x9E3779B1
"""2**32 over the golden ratio: its multiples are evenly distributed."""
ELEMENTS_AT_ONCE = 1 << 25
"""They take 16 bytes each while they are updated. Larger tensors are updated in parts."""


class UpdatedPart(NamedTuple):
    """A tensor of this rank, or part of one."""

    weight: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    first: int
    """The index of its first element in the full tensor."""

    def cut(self, most: int) -> "Iterator[UpdatedPart]":
        """Parts of at most so many elements."""
        if self.weight.numel() <= most:
            yield self
            return
        tensors = (self.weight, self.gradient, self.mean, self.square)
        flat = [torch.split(tensor.view(-1), most) for tensor in tensors]
        for number, (weight, gradient, mean, square) in enumerate(zip(*flat, strict=True)):
            yield UpdatedPart(weight, gradient, mean, square, self.first + number * most)


class AdamWBf16(torch.optim.Optimizer):
    """AdamW with moments in bfloat16, at half the memory. It computes in float32.

    Rounding to nearest would drop changes below 1/256 of a moment, always in the same direction: with a decay of 0.999
    a moment would never decrease. Moments are therefore rounded up or down with a dither, so that they are right on
    average over the steps. So are weights that are stored in bfloat16. Many tensors are updated by one kernel.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            by_step: dict[int, list[UpdatedPart]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step, part = self._counted(parameter)
                    by_step.setdefault(step, []).extend(part.cut(ELEMENTS_AT_ONCE))
            for step, parts in by_step.items():
                for some in _in_groups(parts, ELEMENTS_AT_ONCE):
                    _update(some, step, group)

    def _counted(self, parameter: nn.Parameter) -> tuple[int, UpdatedPart]:
        """Its state, with this step counted."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for kind in ("exp_avg", "exp_avg_sq"):
                state[kind] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1
        weight, (start, _) = local_tensor(parameter), local_rows(parameter)
        width = weight[0].numel() if weight.dim() and len(weight) else 1
        mean, square = (local_tensor(state[kind]) for kind in ("exp_avg", "exp_avg_sq"))
        return int(state["step"].item()), UpdatedPart(weight, local_tensor(parameter.grad), mean, square, start * width)


def _in_groups(parts: Sequence[UpdatedPart], most: int) -> Iterator[list[UpdatedPart]]:
    """Neighbours of equal types and devices, with at most so many elements together."""
    group: list[UpdatedPart] = []
    size = 0
    for part in parts:
        num, first = part.weight.numel(), group[0] if group else part
        is_alike = all(
            (one.dtype, one.device) == (other.dtype, other.device)
            for one, other in zip(part[:4], first[:4], strict=True)
        )
        if group and (size + num > most or not is_alike):
            yield group
            group, size = [], 0
        if num:
            group.append(part)
            size += num
    if group:
        yield group


def _update(parts: Sequence[UpdatedPart], step: int, group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    weights, gradients = [part.weight for part in parts], [part.gradient for part in parts]
    new_gradients = gradients if gradients[0].dtype == torch.float32 else _Float32(gradients).tensors
    new_means, new_squares = _Float32([part.mean for part in parts]), _Float32([part.square for part in parts])
    torch._foreach_lerp_(new_means.tensors, new_gradients, 1 - beta1)
    torch._foreach_mul_(new_squares.tensors, beta2)
    torch._foreach_addcmul_(new_squares.tensors, new_gradients, new_gradients, 1 - beta2)
    deviations = torch._foreach_div(new_squares.tensors, 1 - beta2**step)
    torch._foreach_sqrt_(deviations)
    torch._foreach_add_(deviations, group["eps"])
    rounded = [new_means, new_squares]
    new_weights = weights
    if weights[0].dtype != torch.float32:
        rounded.append(copies := _Float32(weights))
        new_weights = copies.tensors
    torch._foreach_mul_(new_weights, 1 - group["lr"] * group["weight_decay"])
    torch._foreach_addcdiv_(new_weights, new_means.tensors, deviations, -group["lr"] / (1 - beta1**step))
    del deviations
    dither = _dither(parts, step)
    for each in rounded:
        each.write_rounded(dither)


class _Float32:
    """Copies of tensors in one piece of memory."""

    def __init__(self, stored: list[Tensor]) -> None:
        self._stored = stored
        sizes = [tensor.numel() for tensor in stored]
        self._all = torch.empty(sum(sizes), dtype=torch.float32, device=stored[0].device)
        self.tensors = [
            part.view(tensor.shape) for part, tensor in zip(torch.split(self._all, sizes), stored, strict=True)
        ]
        torch._foreach_copy_(self.tensors, self._stored)

    def write_rounded(self, dither: Tensor) -> None:
        """Into what was copied, rounded up where the dither carries into the upper bits of a bfloat16."""
        if self._stored[0].dtype == torch.bfloat16:
            self._all.view(torch.int32).add_(dither).bitwise_and_(-0x10000)
        torch._foreach_copy_(self._stored, self.tensors)


def _dither(parts: Sequence[UpdatedPart], step: int) -> Tensor:
    """A number below 2**16 for each element, added before the lower bits of the bfloat16 are cut off. It depends on
    the element's index in its tensor and the step only, so that any number of ranks, and a resumed run, round the same;
    over the steps it visits all values evenly (golden ratio)."""
    sizes = [part.weight.numel() for part in parts]
    places = torch.arange(sum(sizes), device=parts[0].weight.device, dtype=torch.int32)
    places.mul_(_wrapped(GOLDEN_RATIO_32))
    shifts, before = [], 0
    for part, size in zip(parts, sizes, strict=True):
        shifts.append(_wrapped((part.first - before) * GOLDEN_RATIO_32))
        before += size
    torch._foreach_add_(torch.split(places, sizes), shifts)
    return places.bitwise_right_shift_(7).add_(step * 0x9E37 & 0xFFFF).bitwise_and_(0xFFFF)


def _wrapped(number: int) -> int:
    """As a signed 32-bit integer."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
