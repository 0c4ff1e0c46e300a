"""Sharding of a model by FSDP2, activation checkpointing and offloading, and loading through the meta device."""

import contextlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.data.user_code import config_error
from areal_like.training.model import PackedModel
from areal_like.training.offload import HostActivations
from areal_like.training.row_shards import local_tensor
from areal_like.training.torch_compile import compile_layers
from areal_like.training.world import World


def shard(
    module: PackedModel, model: PreTrainedModel, config: TrainEngineConfig, section: str, world: World
) -> PackedModel:
    """Shards layer by layer, then the rest. Gradients are summed, not averaged: losses are already divided."""
    if world.size % config.fsdp.dp_replicate:
        message = f"{config.fsdp.dp_replicate} replicas cannot be made of {world.size} ranks; use a divisor"
        raise config_error(f"{section}.fsdp.dp_replicate", message)
    units = sharding_units(model, _wrap_policy(config), section)
    if config.gradient_checkpointing and config.optimizer is not None:
        freq = config.activation_checkpointing.freq if config.activation_checkpointing else 1
        model.gradient_checkpointing_enable({"use_reentrant": False})
        layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number % freq == 0
    if config.compile is not None:
        alone = world.mesh_of_this_rank()
        compile_layers(
            *(model, units, config, section, world),
            lambda layer: _shard_unit(layer, config, world, alone, offloads=False),
            forward_context(config),
        )
    mesh = world.mesh_with_replicas(config.fsdp.dp_replicate)
    for unit in (*reversed(units), module):  # inner modules first
        _shard_unit(unit, config, world, mesh, config.fsdp.offload_params)
    return module


def _shard_unit(
    unit: nn.Module, config: TrainEngineConfig, world: World, mesh: DeviceMesh, offloads: bool
) -> nn.Module:
    precision = MixedPrecisionPolicy(
        param_dtype=getattr(torch, config.dtype), reduce_dtype=getattr(torch, config.grad_reduce_dtype)
    )
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if offloads else OffloadPolicy()
    sharded = fully_shard(
        unit,
        mesh=mesh,
        reshard_after_forward=config.fsdp.reshard_after_forward,
        mp_policy=precision,
        offload_policy=offload,
    )
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)
    return unit


def forward_context(config: TrainEngineConfig) -> contextlib.AbstractContextManager[object]:
    """The context manager of forward passes in training."""
    if config.activation_offloading is None:
        return contextlib.nullcontext()
    return HostActivations(
        config.activation_offloading.pin_memory, config.activation_offloading.max_inflight_activations
    )


def sharding_units(model: PreTrainedModel, class_names: list[str] | None, section: str) -> list[nn.Module]:
    """The layers that are sharded separately: those in `fsdp.wrap_policy`, else the model's `_no_split_modules`."""
    names = set(class_names or model._no_split_modules or ())
    units = [module for module in model.modules() if type(module).__name__ in names]
    if class_names and len(names) > len(matched := {type(unit).__name__ for unit in units}):
        known = sorted({type(module).__name__ for module in model.modules()})
        raise config_error(
            f"{section}.fsdp.wrap_policy.transformer_layer_cls_to_wrap",
            f"{', '.join(sorted(names - matched))} is not a module of this model; its modules are {', '.join(known)}",
        )
    return units


def _wrap_policy(config: TrainEngineConfig) -> list[str] | None:
    return config.fsdp.wrap_policy.transformer_layer_cls_to_wrap if config.fsdp.wrap_policy else None


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and all buffers, also those that no checkpoint has, such as frequencies of rotary embeddings."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def load_from_first_rank(
    model: nn.Module, loaded: Mapping[str, Tensor] | None, world: World, device: torch.device
) -> None:
    """Fills a model that was sharded on the meta device; parameters go to `device`. Only the first rank has `loaded`,
    and sends each rank its part, tensor by tensor: host memory contains the model once. All ranks must call it."""
    shared = _shared_parameters(model)
    model.to_empty(device=device)
    for first, *others in shared:
        for owner, name in others:
            setattr(owner, name, getattr(*first))
    for name, buffer in model.named_buffers():
        buffer.data = _from_first(buffer.to(world.device), None if loaded is None else loaded[name], world)
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        full = torch.empty(parameter.shape, dtype=parameter.dtype, device=world.device)
        if loaded is not None:
            full.copy_(loaded[name])
        part = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=0)
        local_tensor(parameter).copy_(local_tensor(part))


def _from_first(buffer: Tensor, loaded: Tensor | None, world: World) -> Tensor:
    if loaded is not None:
        buffer.copy_(loaded)
    if world.size > 1:
        dist.broadcast(buffer, src=0)
    return buffer


def _shared_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Parameters with several owners, such as a tied head: `to_empty` separates them."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in model.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((owner, name))
    return [owners for owners in places.values() if len(owners) > 1]
