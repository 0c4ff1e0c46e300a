"""Muon: orthogonalized updates of weight matrices.

Each sharded matrix is gathered on one rank, which orthogonalizes its update; as many matrices as there are ranks are
processed at a time.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_like.training.row_shards import local_tensor, shard_group, split_rows

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Keller Jordan's quintic iteration: all singular values come close to 1 in a few iterations."""
ITERATIONS = 5
ADAM_UPDATE_RMS = 0.2
"""Typical RMS of AdamW's update. Orthogonalized updates are scaled to it, so that learning rate and weight decay have
the same meaning for both."""


class Muon(torch.optim.AdamW):
    """Embeddings, output heads (`tables`) and vectors are updated by AdamW."""

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
        """Grouped by their shard groups."""
        by_group: dict[dist.ProcessGroup | None, list[nn.Parameter]] = {}
        for matrix in matrices:
            # Experts of a layer are a stack of matrices, sharded into whole matrices.
            by_group.setdefault(shard_group(matrix) if matrix.dim() == 2 else None, []).append(matrix)
        for ranks, group_matrices in by_group.items():
            chunk_size = 1 if ranks is None else ranks.size()
            for chunk in (
                group_matrices[place : place + chunk_size] for place in range(0, len(group_matrices), chunk_size)
            ):
                steps = [self._with_momentum(matrix) for matrix in chunk]
                updates = (
                    _orthogonalize_across_ranks(chunk, steps, ranks)
                    if ranks is not None
                    else [*map(orthogonalize, steps)]
                )
                for matrix, update in zip(chunk, updates, strict=True):
                    weight = local_tensor(matrix)
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    length = ADAM_UPDATE_RMS * max(matrix.shape[-2:]) ** 0.5
                    weight.add_(update.to(weight), alpha=-group["lr"] * length)

    def _with_momentum(self, matrix: nn.Parameter) -> Tensor:
        """This rank's part of the momentum update."""
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
    """Approximates U V^T for the matrix U S V^T; for a stack, of each matrix. In bfloat16 on GPUs."""
    x: Tensor = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


def _orthogonalize_across_ranks(
    matrices: Sequence[Tensor], steps: Sequence[Tensor], ranks: dist.ProcessGroup
) -> list[Tensor]:
    """The i-th rank gathers the i-th matrix, orthogonalizes it, and scatters the rows back."""
    if ranks.size() == 1:
        return [orthogonalize(step) for step in steps]
    me, device = ranks.rank(), _device_of(matrices[0])
    parts = [split_rows(len(matrix), ranks.size()) for matrix in matrices]
    own_sizes = [part[me].num * matrix.shape[1] for part, matrix in zip(parts, matrices, strict=True)]
    idle = [0] * (ranks.size() - len(matrices))
    if me < len(matrices):
        mine = matrices[me].shape
        sizes_of_ranks = [rows.num * mine[1] for rows in parts[me]]
    else:
        sizes_of_ranks = [0] * ranks.size()
    sent = torch.cat([step.to(device).flatten() for step in steps])
    gathered = sent.new_empty(sum(sizes_of_ranks))
    dist.all_to_all_single(gathered, sent, sizes_of_ranks, own_sizes + idle, group=ranks)
    if me < len(matrices):
        gathered = orthogonalize(gathered.view(mine)).to(sent.dtype).flatten()
    returned = torch.empty_like(sent)
    dist.all_to_all_single(returned, gathered.contiguous(), own_sizes + idle, sizes_of_ranks, group=ranks)
    pieces = torch.split(returned, own_sizes)
    return [piece.view(step.shape) for piece, step in zip(pieces, steps, strict=True)]


def _device_of(matrix: Tensor) -> torch.device:
    """The device of collectives: parts of a matrix may be offloaded to host memory."""
    assert isinstance(matrix, DTensor)
    return torch.device(matrix.device_mesh.device_type)
