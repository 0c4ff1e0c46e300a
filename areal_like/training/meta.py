"""Loading by the first rank alone: the others build the model without memory, and each is sent its own part, tensor by
tensor. However many ranks a machine has, its host memory holds the whole model once."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from areal_like.training.row_shards import local_tensor
from areal_like.training.world import World


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, also those that no checkpoint has, such as the frequencies of rotary embeddings."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def load_from_first_rank(
    model: nn.Module, loaded: Mapping[str, Tensor] | None, world: World, device: torch.device
) -> None:
    """Fills a model that was sharded without memory; parameters go to `device`. Only the first rank has what was
    `loaded`. All ranks must call it."""
    shared = _shared_parameters(model)
    model.to_empty(device=device)
    for first, *others in shared:
        for owner, name in others:
            setattr(owner, name, getattr(*first))
    for name, buffer in model.named_buffers():
        buffer.data = _from_first(buffer.to(world.device), None if loaded is None else loaded[name], world)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=world.device)
        if loaded is not None:
            whole.copy_(loaded[name])
        own = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=0)
        local_tensor(parameter).copy_(local_tensor(own))


def _from_first(buffer: Tensor, loaded: Tensor | None, world: World) -> Tensor:
    if loaded is not None:
        buffer.copy_(loaded)
    if world.size > 1:
        dist.broadcast(buffer, src=0)
    return buffer


def _shared_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Where one parameter stands in several places, such as that of a tied head: giving it memory tears it apart."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in model.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((owner, name))
    return [found for found in places.values() if len(found) > 1]
