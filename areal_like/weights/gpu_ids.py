"""Identifies GPUs across processes and machines."""

import os

import torch

from areal_like.weights.transfer_path import MIG


def gpu_ids(device: torch.device) -> list[str]:
    """The UUID of a GPU, or of the part of one that CUDA_VISIBLE_DEVICES names; nothing for a CPU."""
    if device.type == "cpu":
        return []
    number = torch.cuda.current_device() if device.index is None else device.index
    visible = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if number < len(visible) and visible[number].startswith(MIG):
        return [visible[number]]
    return [str(torch.cuda.get_device_properties(number).uuid)]
