"""Mean and standard deviation normalization of rewards or advantages, over the whole batch or per group."""

from collections.abc import Callable

import torch
from torch import Tensor

from areal_like.algorithms.conversation_votes import conversation_votes
from areal_like.algorithms.packed import renumber_groups

LEVELS = ("batch", "group")

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over ranks."""


def normalize(
    values: Tensor,
    *,
    mean_level: str | None,
    mean_leave1out: bool,
    std_level: str | None,
    std_unbiased: bool,
    eps: float,
    mask: Tensor | None = None,
    groups: Tensor | None = None,
    num_groups: int | None = None,
    reduce: Reduce | None = None,
    conversations: Tensor | None = None,
) -> Tensor:
    """(values - mean) / (standard deviation + eps) as float32; 0 where the mask is off.

    `groups` holds the group of each row (or of each single value); groups may differ in size and be in any order. The
    mean is 0 for level None, and for an element that is left out of its own mean when there is no other. The deviation
    is taken from this mean; it is 1 for level None (then `eps` is not added), for no values, and with `std_unbiased`
    for a single value.

    With `conversations`, mean and deviation are those of the means of the conversations.

    Over several ranks, pass `reduce`; with level `group` also `num_groups`, and the same group numbers on every rank.
    """
    for name, level in (("mean_level", mean_level), ("std_level", std_level)):
        if level is not None and level not in LEVELS:
            raise ValueError(f"{name}: {level!r} is not one of {', '.join(LEVELS)} and null")
    in_mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.bool()
    # Sums of equal float32 values are exact in float64: a group whose rewards are all equal becomes exactly 0.
    x = torch.where(in_mask, values.float(), 0.0).double()
    voted, voters = (x, in_mask) if conversations is None else conversation_votes(x, in_mask, conversations)
    sums = _Sums(x, voters, groups, num_groups, reduce, "group" in (mean_level, std_level))

    mean = torch.zeros_like(x)
    if mean_level is not None:
        total, count = sums.of(torch.where(voters, voted, 0.0), mean_level), sums.count(mean_level)
        if mean_leave1out:
            mean = torch.where(count > 1, (total - voted) / (count - 1).clamp(min=1), 0.0)
        else:
            mean = total / count.clamp(min=1)
    deviation = torch.where(in_mask, x - mean, 0.0)
    if std_level is None:
        return deviation.float()
    count = sums.count(std_level)
    freedom = count - 1 if std_unbiased else count
    squares = sums.of(torch.where(voters, voted - mean, 0.0).square(), std_level)
    std = torch.where(freedom > 0, (squares / freedom.clamp(min=1)).sqrt(), 1.0)
    scale = std + eps
    return torch.where(scale > 0, deviation / scale, 0.0).float()


class _Sums:
    """Sums per level (`batch` or `group`), broadcast to each value."""

    def __init__(
        self,
        x: Tensor,
        in_mask: Tensor,
        groups: Tensor | None,
        num_groups: int | None,
        reduce: Reduce | None,
        grouped: bool,
    ) -> None:
        self._in_mask = in_mask.double()
        self._reduce = reduce if reduce is not None else _no_reduce
        if grouped:
            if groups is None:
                raise ValueError("groups: the level `group` requires the group of each row")
            if reduce is not None and num_groups is None:
                raise ValueError("num_groups: required with `reduce` and the level `group`")
            if num_groups is None:
                num_groups, groups = renumber_groups(groups)
            missing = x.dim() - groups.dim()
            self._groups = groups.long().reshape(groups.shape + (1,) * missing).expand_as(x)
            self._num_groups = num_groups

    def of(self, x: Tensor, level: str) -> Tensor:
        """The sum over the batch or over the value's group, at each value."""
        if level == "batch":
            return self._reduce(x.sum().reshape(1)).expand(x.shape)
        per_group = x.new_zeros(self._num_groups).index_add(0, self._groups.reshape(-1), x.reshape(-1))
        return self._reduce(per_group)[self._groups]

    def count(self, level: str) -> Tensor:
        return self.of(self._in_mask, level)


def _no_reduce(values: Tensor) -> Tensor:
    return values
