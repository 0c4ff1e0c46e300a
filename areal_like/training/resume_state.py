"""Resume state of an engine: optimizer state, master weights where they differ from the published ones, and scalars."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_like.process.errors import Failure
from areal_like.training.engine import TrainEngine
from areal_like.training.host_copies import HostCopies
from areal_like.training.sharded_files import StateMismatch, TensorShard, load_into, shard_of, stored_tensors

MASTER = "master"
"""Key prefix of master weights; that of optimizer state is the optimizer's name of it."""


def engine_state(engine: TrainEngine, memory: HostCopies) -> dict[str, TensorShard]:
    """This rank's part, copied to `memory`."""
    tensors = {f"{kind}/{name}": tensor for name, kind, tensor in _tensors(engine)}
    shards = {key: shard_of(key, tensor, engine.world.is_first, memory) for key, tensor in tensors.items()}
    return {key: shard for key, shard in shards.items() if shard is not None}


def engine_scalars(engine: TrainEngine) -> dict[str, Any]:
    """State that is not tensors."""
    return {
        "optimizer": type(engine.optimizer).__name__,
        "skipped_in_a_row": engine.consecutive_skips,
        "schedule_start": engine.schedule_start,
        "loss_scale": engine.scale.state(),
    }


def restore_engine(engine: TrainEngine, folder: Path, facts: dict[str, Any]) -> None:
    """Into an engine with weights from the same checkpoint."""
    checkpoint = folder.parent.parent
    if facts["optimizer"] != (name := type(engine.optimizer).__name__):
        raise Failure(
            f"{engine.section}.optimizer.type: the checkpoint {checkpoint} was written by {facts['optimizer']}, and "
            f"this run has {name}; resume with the same optimizer"
        )
    engine.consecutive_skips, engine.schedule_start = facts["skipped_in_a_row"], facts["schedule_start"]
    engine.scale.restore(facts["loss_scale"])
    parameters, targets, stored = dict(engine.model.named_parameters()), {}, stored_tensors(folder)
    try:
        if engine.adapter is not None and not any(key.startswith(f"{MASTER}/") for key in stored):
            raise StateMismatch("it has no adapter")
        for key, (shape, dtype) in stored.items():
            kind, _, name = key.partition("/")
            if name not in parameters:
                raise StateMismatch(f"this model has no {name}")
            parameter = parameters[name]
            if kind == MASTER:
                targets[key] = parameter.detach()
            else:
                targets[key] = engine.optimizer.state[parameter][kind] = _empty_state(engine, parameter, shape, dtype)
        load_into(folder, targets)
    except StateMismatch as mismatch:
        hint = f"resume with the model and settings of the run that wrote it ({engine.section})"
        if engine.adapter is not None or any(".lora_A." in key for key in stored):
            keys = ("use_lora", "lora_rank", "target_modules", "lora_modules_to_save")
            hint = f"set {', '.join(f'{engine.section}.{key}' for key in keys)} as in that run"
        raise Failure(f"resume: {folder} does not match: {mismatch}; {hint}") from mismatch


def _tensors(engine: TrainEngine) -> list[tuple[str, str, Tensor]]:
    """Parameter name, kind of state, and tensor."""
    tensors = []
    # An adapter is published merged.
    has_master = engine.config.dtype != engine.config.master_dtype or engine.adapter is not None
    for name, parameter in engine.model.named_parameters():
        if not parameter.requires_grad:
            continue
        if has_master:
            tensors.append((name, MASTER, parameter.detach()))
        for kind, value in engine.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors.append((name, kind, value))
    return tensors


def _empty_state(engine: TrainEngine, parameter: nn.Parameter, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """State with the shape of its parameter is sharded like it; a step count is on the device that the optimizer
    requires."""
    if shape == parameter.shape and (shape or isinstance(parameter, DTensor)):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    if shape:
        raise StateMismatch(
            f"a state of shape {tuple(shape)} does not belong to a parameter of shape {tuple(parameter.shape)}"
        )
    (group,) = [group for group in engine.optimizer.param_groups if any(parameter is each for each in group["params"])]
    on_device = group.get("fused") or group.get("capturable")
    return torch.zeros(shape, dtype=dtype, device=parameter.device if on_device else "cpu")
