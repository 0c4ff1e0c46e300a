"""How a model is spread over the trainer ranks, and what its layers do to save memory and time."""

import contextlib

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.training.compile import compile_layers
from areal_like.training.model import PackedModel, config_error
from areal_like.training.offload import HostActivations
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
