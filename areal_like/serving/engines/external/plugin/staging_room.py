"""How much of a worker's GPU new weights may take until they are applied. Runs in the engine's environment."""

import os

import torch

from areal_like.config.number_text import size_text
from areal_like.process.identity import STAGED_BYTES
from areal_like.serving.engines.engine_site import SPARE_BYTES


def free_on(device: torch.device) -> int:
    """Bytes of a GPU that no process has reserved; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def unused_on(device: torch.device) -> int:
    """Bytes of a GPU that torch has reserved in this process and that no tensor holds; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


class StagingRoom:
    """What the plan has left for new weights is theirs if it is free. Without a plan, for an engine that was started by
    others, `reserve` bytes stay free, and all of a GPU that the trainer uses too.

    What torch keeps of the weights that were staged before counts as free; what it kept already does not, as the engine
    and its graphs compute there."""

    def __init__(self, device: torch.device, reserve: int = SPARE_BYTES, planned: int | None = None) -> None:
        self._device, self._reserve = device, reserve
        self._planned = int(os.environ.get(STAGED_BYTES, "0")) if planned is None else planned
        self._of_engine: int | None = None
        """Unused bytes before the first weights."""
        self.lacks = ""
        """Why the last weights had no room; empty if they had."""

    def has(self, num_bytes: int, shares_gpu: bool = False) -> bool:
        """`shares_gpu`: with the trainer."""
        self.lacks = "" if self._device.type != "cuda" else self._shortage(num_bytes, shares_gpu)
        return not self.lacks

    def _shortage(self, num_bytes: int, shares_gpu: bool) -> str:
        unused = unused_on(self._device)
        if self._of_engine is None:
            self._of_engine = unused
        free = free_on(self._device) + max(0, unused - self._of_engine)
        needs = f"new weights take {size_text(num_bytes)}"
        if num_bytes <= self._planned:
            is_free = free >= num_bytes + SPARE_BYTES
            return "" if is_free else f"{needs}, as planned, and its GPU has {size_text(free)} free"
        if shares_gpu:
            return (
                f"{needs}, and the plan leaves {size_text(self._planned)} for them on the GPU that the trainer shares"
            )
        left = max(0, free - self._reserve)
        return "" if num_bytes <= left else f"{needs}, and the engine leaves {size_text(left)} of its GPU"
