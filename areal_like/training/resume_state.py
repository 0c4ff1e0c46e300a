"""What an engine needs beyond its published weights to go on with the same numbers, as whole tensors by name: the same
file serves any number of ranks."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from areal_like.process.errors import Failure
from areal_like.training.engine import Engine, whole

STATE_FILE = "optimizer.safetensors"
MASTER = "master"
"""Prefix of the weights themselves, where the optimizer holds them in another precision than they are published in."""


def engine_state(engine: Engine) -> dict[str, Tensor]:
    """All ranks must call it; each gets all of it."""
    found = {}
    for name, parameter in engine.causal.named_parameters():
        if engine.config.dtype != engine.config.master_dtype:
            found[f"{MASTER}/{name}"] = whole(parameter.detach())
        for kind, value in engine.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{kind}/{name}"] = whole(value)
    return found


def engine_facts(engine: Engine) -> dict[str, Any]:
    """What is no tensor."""
    return {
        "optimizer": type(engine.optimizer).__name__,
        "skipped_in_a_row": engine.skipped_in_a_row,
        "schedule_start": engine.schedule_start,
    }


def restore_engine(engine: Engine, folder: Path, facts: dict[str, Any]) -> None:
    """Into an engine whose weights were loaded from the same checkpoint."""
    if facts["optimizer"] != (name := type(engine.optimizer).__name__):
        raise Failure(
            f"{engine.where}.optimizer.type: the checkpoint {folder.parent} was written by {facts['optimizer']}, and "
            f"this run has {name}; go on with the same optimizer"
        )
    engine.skipped_in_a_row, engine.schedule_start = facts["skipped_in_a_row"], facts["schedule_start"]
    names = dict(engine.causal.named_parameters())
    with safe_open(folder / STATE_FILE, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (this is no mapping)
            kind, _, name = key.partition("/")
            parameter = names[name]
            value = _placed(file.get_tensor(key), parameter)
            if kind == MASTER:
                with torch.no_grad():
                    parameter.copy_(value)
            else:
                engine.optimizer.state[parameter][kind] = value


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """As the parameter is: each rank takes its own part."""
    if value.shape != parameter.shape or not isinstance(parameter, DTensor):
        return value
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
