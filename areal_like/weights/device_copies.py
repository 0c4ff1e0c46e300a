"""Copies between a GPU and main memory, and waits for them."""

import torch
from torch import Tensor


def is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def host_memory(size: int, is_pinned: bool) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)


def start_read_back(values: Tensor) -> Tensor:
    """A copy in main memory, which is complete when this stream has come so far."""
    memory = host_memory(values.nbytes, is_pinned=True)
    return memory.view(values.dtype).reshape(values.shape).copy_(values, non_blocking=True)


def sent_to(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy there, which is not waited for."""
    return numbers if device.type == "cpu" else numbers.pin_memory().to(device, non_blocking=True)


def when_done(device: torch.device) -> torch.cuda.Event:
    """Of what was begun on this stream."""
    event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for_stream(device: torch.device) -> None:
    """Until what was begun on this stream is done; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
