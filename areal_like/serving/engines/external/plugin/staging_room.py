"""How much of a worker's GPU staged weights may take. Runs in the engine's environment."""

import torch

RESERVE_BYTES = 256 * 2**20
"""GPU memory that staged weights leave free."""


def free_on(device: torch.device) -> int:
    """Bytes of a GPU that no process has reserved; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def unused_on(device: torch.device) -> int:
    """Bytes of a GPU that torch has reserved in this process and that no tensor holds; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


class StagingRoom:
    """`reserve`: bytes that stay free. What torch keeps of the weights that were staged before counts as free; what it
    kept already does not, as the engine and its graphs compute there."""

    def __init__(self, device: torch.device, reserve: int = RESERVE_BYTES) -> None:
        self._device, self._reserve = device, reserve
        self._of_engine: int | None = None
        """Unused bytes before the first weights."""

    def has(self, num_bytes: int) -> bool:
        if self._device.type != "cuda":
            return True
        unused = unused_on(self._device)
        if self._of_engine is None:
            self._of_engine = unused
        return free_on(self._device) + max(0, unused - self._of_engine) >= num_bytes + self._reserve
