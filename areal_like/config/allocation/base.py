"""The nouns of an allocation: which engine runs on how many devices, divided along which dimensions.

Dimensions are written as a letter and a number: `d` data (for servers: how many), `t` tensor, `p` pipeline,
`c` context, `e` expert. A trainer may divide its attention and its expert layers differently ("hybrid").
"""

from dataclasses import dataclass, field
from typing import Literal

SERVERS = ("embedded", "sglang", "vllm")
TRAINERS = ("fsdp", "megatron")
DIMENSIONS = {"d": "data", "t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}


@dataclass(frozen=True)
class AllocationProblem:
    """Something to tell the user: about one dotted key, and about the others that it has to do with."""

    key: str
    message: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Sizes as they were written; what was not written is 1."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def world_size(self) -> int:
        """Number of devices. Experts lie on the devices that are already there, so they do not multiply it."""
        return self.data * self.context * self.tensor * self.pipeline

    def __str__(self) -> str:
        sizes = {letter: getattr(self, name) for letter, name in DIMENSIONS.items()}
        return "".join(f"{letter}{size}" for letter, size in sizes.items() if size > 1 or letter == "d")


@dataclass(frozen=True)
class BackendSpec:
    """What one place in the configuration says about servers or trainers; None is left open there."""

    backend: str | None = None
    dims: ParallelDims | None = None
    ffn: ParallelDims | None = None
    """Sizes of the expert layers where a hybrid gives them apart; `dims` are then those of attention."""

    def __str__(self) -> str:
        if self.dims is None:
            return self.backend or "auto"
        dims = f"(attn:{self.dims}|ffn:{self.ffn})" if self.ffn else str(self.dims)
        return f"{self.backend}:{dims}" if self.backend else dims


@dataclass(frozen=True)
class AllocationMode:
    """A parsed `allocation_mode`: either a keyword, or servers, trainers or both."""

    keyword: Literal["auto", "manual"] | None = None
    rollout: BackendSpec | None = None
    train: BackendSpec | None = None
    client: Literal["eval", "cpu"] | None = None
    """What uses the servers where no trainer does."""
    colocated: bool = False

    def __str__(self) -> str:
        parts = [str(part) for part in (self.rollout, self.train, self.client) if part is not None]
        return self.keyword or ("|" if self.colocated else "+").join(parts)


@dataclass(frozen=True, kw_only=True)
class ParallelStrategy(ParallelDims):
    """One engine, and how it is divided over its devices."""

    backend: str
    expert_tensor: int = 1

    @classmethod
    def of(cls, part: BackendSpec) -> "ParallelStrategy":
        """`part` with name and sizes."""
        dims = part.dims
        assert part.backend and dims, "names and sizes are settled before this"
        return cls(
            backend=part.backend,
            data=dims.data,
            tensor=dims.tensor,
            pipeline=dims.pipeline,
            context=dims.context,
            expert=part.ffn.expert if part.ffn else dims.expert,
            expert_tensor=part.ffn.tensor if part.ffn else 1,
        )

    @property
    def expert_data(self) -> int:
        """Copies of each expert."""
        return self.world_size // (self.pipeline * self.expert_tensor * self.expert)

    @property
    def dims(self) -> str:
        """Everything but the backend, as it is written."""
        if self.expert_tensor == 1:
            return super().__str__()
        attention = ParallelDims(data=self.data, tensor=self.tensor, pipeline=self.pipeline, context=self.context)
        experts = ParallelDims(
            data=self.expert_data, tensor=self.expert_tensor, pipeline=self.pipeline, expert=self.expert
        )
        return f"(attn:{attention}|ffn:{experts})"

    def __str__(self) -> str:
        return f"{self.backend}:{self.dims}"


@dataclass(frozen=True)
class ClusterSize:
    """What `cluster.*` says of the machines: how many nodes, and how many GPUs each has ("auto": look)."""

    n_nodes: int = 1
    n_gpus_per_node: int | Literal["auto"] = "auto"
    type: str = "local"


@dataclass(frozen=True)
class Allocation:
    """What runs where, and why. `reasons` gives each backend key the words for its value."""

    rollout: ParallelStrategy | None = None
    actor: ParallelStrategy | None = None
    """The trainer: `actor`, or `model` in supervised and reward-model training."""
    ref: ParallelStrategy | None = None
    critic: ParallelStrategy | None = None
    eval_only: bool = False
    shared_device: bool = False
    """One server and one trainer on the same GPU, its memory split between them."""
    num_gpus: int = 0
    """GPUs that servers and trainers take together; 0 where all runs on the CPU."""
    reasons: dict[str, str] = field(default_factory=dict)
    cannot_start: tuple[AllocationProblem, ...] = ()
    """What this framework does not run: said in the plan, an error at a real start."""
    needs: tuple[AllocationProblem, ...] = ()
    """What the cluster or this machine lacks: said in the plan, an error at a real start."""
    warnings: tuple[AllocationProblem, ...] = ()
    """What is worth knowing and stops nothing."""

    @property
    def train(self) -> ParallelStrategy | None:
        return self.actor

    @property
    def servers_only(self) -> bool:
        return self.rollout is not None and self.actor is None and not self.eval_only

    def __str__(self) -> str:
        parts = [str(part) for part in (self.rollout, self.actor) if part is not None]
        return "+".join([*parts, "eval"] if self.eval_only else parts)
