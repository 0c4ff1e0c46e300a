"""Muon: updates of weight matrices are orthogonalized, so that no direction of a matrix learns at the cost of others.

A matrix that is spread over ranks is put together on one of them, which works for all; as many matrices as there are
ranks are under way at once.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_like.training.row_shards import local_tensor, shard_group, split_rows

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration by Keller Jordan: all singular values end up near 1 after few rounds."""
ITERATIONS = 5
ADAM_UPDATE_RMS = 0.2
"""Typical size of an element of AdamW's update. Orthogonalized updates are brought to it, so that learning rate and
weight decay mean the same for both."""


class Muon(torch.optim.AdamW):
    """Embeddings, output heads (`tables`) and vectors are AdamW's."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        tables: Collection[nn.Parameter],
        *,
        momentum: float,
        nesterov: bool,
        **adam: Any,
    ) -> None:
        others = {id(table) for table in tables}
        given = list(params)
        matrices = [parameter for parameter in given if parameter.dim() > 1 and id(parameter) not in others]
        known = {id(matrix) for matrix in matrices}
        rest = [parameter for parameter in given if id(parameter) not in known]
        groups = [{"params": matrices, "is_muon": True}, {"params": rest, "is_muon": False}]
        super().__init__([group for group in groups if group["params"]], fused=True, **adam)
        self._momentum, self._nesterov = momentum, nesterov

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        groups = self.param_groups
        for group in groups:
            if group["is_muon"]:
                self._step_matrices([matrix for matrix in group["params"] if matrix.grad is not None], group)
        self.param_groups = [group for group in groups if not group["is_muon"]]
        try:
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _step_matrices(self, matrices: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        """Those of the same owners together."""
        found: dict[dist.ProcessGroup | None, list[nn.Parameter]] = {}
        for matrix in matrices:
            # Experts of one layer are a stack of matrices, and a rank has whole ones of it.
            found.setdefault(shard_group(matrix) if matrix.dim() == 2 else None, []).append(matrix)
        for ranks, of_them in found.items():
            at_once = 1 if ranks is None else ranks.size()
            for few in (of_them[place : place + at_once] for place in range(0, len(of_them), at_once)):
                steps = [self._with_momentum(matrix) for matrix in few]
                updates = (
                    _orthogonalize_across_ranks(few, steps, ranks)
                    if ranks is not None
                    else [*map(orthogonalize, steps)]
                )
                for matrix, update in zip(few, updates, strict=True):
                    weight = local_tensor(matrix)
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    length = ADAM_UPDATE_RMS * max(matrix.shape[-2:]) ** 0.5
                    weight.add_(update.to(weight), alpha=-group["lr"] * length)

    def _with_momentum(self, matrix: nn.Parameter) -> Tensor:
        """This rank's part of the step that momentum would make."""
        assert matrix.grad is not None
        gradient: Tensor = local_tensor(matrix.grad)
        state: dict[str, Tensor] = self.state[matrix]
        if self._momentum == 0:
            return gradient
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        moving = local_tensor(state["momentum_buffer"]).mul_(self._momentum).add_(gradient)
        return gradient.add(moving, alpha=self._momentum) if self._nesterov else moving


def orthogonalize(matrix: Tensor) -> Tensor:
    """About U V^T of the matrix U S V^T; each one of a stack. In bfloat16 where that is fast."""
    found: Tensor = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    found = found.mT if is_tall else found
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found.mT if is_tall else found


def _orthogonalize_across_ranks(
    matrices: Sequence[Tensor], steps: Sequence[Tensor], ranks: dist.ProcessGroup
) -> list[Tensor]:
    """The i-th rank gets the i-th matrix whole, orthogonalizes it, and gives each rank its rows back."""
    if ranks.size() == 1:
        return [orthogonalize(step) for step in steps]
    me, device = ranks.rank(), _device_of(matrices[0])
    parts = [split_rows(len(matrix), ranks.size()) for matrix in matrices]
    own = [part[me].num * matrix.shape[1] for part, matrix in zip(parts, matrices, strict=True)]
    idle = [0] * (ranks.size() - len(matrices))
    if me < len(matrices):
        mine = matrices[me].shape
        theirs = [rows.num * mine[1] for rows in parts[me]]
    else:
        theirs = [0] * ranks.size()
    sent = torch.cat([step.to(device).flatten() for step in steps])
    whole = sent.new_empty(sum(theirs))
    dist.all_to_all_single(whole, sent, theirs, own + idle, group=ranks)
    if me < len(matrices):
        whole = orthogonalize(whole.view(mine)).to(sent.dtype).flatten()
    back = torch.empty_like(sent)
    dist.all_to_all_single(back, whole.contiguous(), own + idle, theirs, group=ranks)
    pieces = torch.split(back, own)
    return [piece.view(step.shape) for piece, step in zip(pieces, steps, strict=True)]


def _device_of(matrix: Tensor) -> torch.device:
    """Where the ranks talk to each other: parts of a matrix may wait in host memory."""
    assert isinstance(matrix, DTensor)
    return torch.device(matrix.device_mesh.device_type)
