"""How a model is spread over the trainer ranks, and what its layers do to save memory and time."""

import contextlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
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
    module: PackedModel, model: PreTrainedModel, config: TrainEngineConfig, where: str, world: World
) -> PackedModel:
    """Layer by layer, then what is left. Losses come divided already: gradients are added up, not averaged."""
    if world.size % config.fsdp.dp_replicate:
        message = f"{config.fsdp.dp_replicate} replicas cannot be made of {world.size} ranks; take a divisor of it"
        raise config_error(f"{where}.fsdp.dp_replicate", message)
    units = sharding_units(model, _wrapped(config), where)
    if config.gradient_checkpointing and config.optimizer is not None:
        freq = config.activation_checkpointing.freq if config.activation_checkpointing else 1
        model.gradient_checkpointing_enable({"use_reentrant": False})
        layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = number % freq == 0
    if config.compile is not None:
        compile_layers(model, units, config.compile, where, world.device)
    precision = MixedPrecisionPolicy(
        param_dtype=getattr(torch, config.dtype), reduce_dtype=getattr(torch, config.grad_reduce_dtype)
    )
    offload = OffloadPolicy()
    if config.fsdp.offload_params:
        offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
    for unit in (*reversed(units), module):  # of one inside another the inner one comes first
        sharded = fully_shard(
            unit,
            mesh=world.mesh_with_replicas(config.fsdp.dp_replicate),
            reshard_after_forward=config.fsdp.reshard_after_forward,
            mp_policy=precision,
            offload_policy=offload,
        )
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    return module


def forward_context(config: TrainEngineConfig) -> contextlib.AbstractContextManager[object]:
    """What the forward pass of training runs in."""
    if config.activation_offloading is None:
        return contextlib.nullcontext()
    return HostActivations(
        config.activation_offloading.pin_memory, config.activation_offloading.max_inflight_activations
    )


def sharding_units(model: PreTrainedModel, wanted: list[str] | None, where: str) -> list[nn.Module]:
    """The layers that are sharded one by one: those that `fsdp.wrap_policy` names, else those that the model says are
    not to be split."""
    names = set(wanted or model._no_split_modules or ())
    units = [module for module in model.modules() if type(module).__name__ in names]
    if wanted and len(names) > len(found := {type(unit).__name__ for unit in units}):
        known = sorted({type(module).__name__ for module in model.modules()})
        raise config_error(
            f"{where}.fsdp.wrap_policy.transformer_layer_cls_to_wrap",
            f"{', '.join(sorted(names - found))} is no module of this model; it has {', '.join(known)}",
        )
    return units


def _wrapped(config: TrainEngineConfig) -> list[str] | None:
    return config.fsdp.wrap_policy.transformer_layer_cls_to_wrap if config.fsdp.wrap_policy else None


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
