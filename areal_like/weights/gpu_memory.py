"""Memory of a GPU that several processes use: exported by its owner, opened by others on the same GPU (CUDA IPC)."""

import contextlib
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

SETTINGS_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments"


def shareable_memory(size: int, device: torch.device) -> Tensor:
    """Memory of an allocation of its own: that of expandable segments is shared through file descriptors, which Linux
    refuses to processes that are not parent and child."""
    with _without_expandable_segments():
        return torch.empty(size, dtype=torch.uint8, device=device)


def export_memory(content: Tensor) -> list[Any]:
    """A handle as JSON values, for one process: every export is counted, and its memory is not given to another tensor
    before the process has closed it."""
    storage: Any = content.untyped_storage()
    return [b64encode(part).decode() if isinstance(part, bytes) else part for part in storage._share_cuda_()]


def open_memory(handle: list[Any], device: torch.device) -> Tensor:
    """The same memory in another process, as bytes."""
    number = torch.cuda.current_device() if device.index is None else device.index
    _, address, size, offset, counter, counter_offset, event, needs_event = handle
    parts = b64decode(address), size, offset, b64decode(counter), counter_offset, b64decode(event), needs_event
    shared: Any = torch.UntypedStorage
    storage = shared._new_shared_cuda(number, *parts)
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (size,), (1,))


@contextlib.contextmanager
def _without_expandable_segments() -> Iterator[None]:
    """torch takes settings as a whole: the others are repeated. Settings that were made at runtime, not in the
    environment, cannot be read in all its versions."""
    settings = next((os.environ[name] for name in SETTINGS_VARIABLES if os.environ.get(name)), "")
    if f"{EXPANDABLE}:true" not in settings.lower().replace(" ", ""):
        yield
        return
    others = [part for part in settings.split(",") if not part.strip().startswith(EXPANDABLE)]
    native: Any = torch._C
    native._accelerator_setAllocatorSettings(",".join([*others, f"{EXPANDABLE}:False"]))
    try:
        yield
    finally:
        native._accelerator_setAllocatorSettings(settings)
