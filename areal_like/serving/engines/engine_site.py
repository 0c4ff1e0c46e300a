"""What the plan tells an engine of machine and model, and what a server takes of a GPU."""

from typing import NamedTuple

from areal_like.config.number_text import size_text
from areal_like.models.model_shape import ModelShape

CONTEXT_BYTES = 1 << 30
"""What a process takes of a GPU before it loads anything: the context of CUDA, kernels, buffers of NCCL."""
SPARE_BYTES = 256 << 20
"""What new weights leave free on a GPU until they are applied."""


class EngineSite(NamedTuple):
    """Machine and model of an engine's servers."""

    on_gpu: bool
    machine: str
    """What is known of its GPUs, as text."""
    memory_bytes: int | None
    """Main memory; None if it is not known."""
    gpu_bytes: int | None
    servers: int
    shares_gpu: bool
    """With a trainer."""
    trains: bool
    """Whether the weights change."""
    model: ModelShape | None


class EngineBytes(NamedTuple):
    """Of one server."""

    weights: int
    """All sets of them."""
    sets: int
    working: int
    """All beside weights and cache, without the context."""
    cache_per_token: int

    @property
    def text(self) -> str:
        twice = ", the next version included" if self.sets > 1 else ""
        return f"weights of {size_text(self.weights)}{twice}, and temporaries of {size_text(self.working)}"


class GpuShare(NamedTuple):
    """Bytes that a server takes of a GPU which a trainer shares; `working`: all beside weights and cache."""

    gpu_bytes: int
    weights: int
    working: int
    cache_bytes: int
    cache_tokens: int
    reason: str
    """Of the size of the cache."""
    staged: int = 0
    """Of new weights, until they are applied."""

    @property
    def total(self) -> int:
        return self.weights + self.working + self.cache_bytes + self.staged
