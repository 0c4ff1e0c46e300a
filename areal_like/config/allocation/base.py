"""Types of an allocation: engines, their sizes along each dimension, problems.

Dimensions are written as a letter and a number: `d` data (for servers: how many), `t` tensor, `p` pipeline,
`c` context, `e` expert. A trainer may use different sizes for attention and expert layers ("hybrid").
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from areal_like.config.problems import Problem

TRAINERS = ("fsdp", "megatron")
DIMENSIONS = {"d": "data", "t": "tensor", "p": "pipeline", "c": "context", "e": "expert"}


@dataclass(frozen=True, kw_only=True)
class ParallelDims:
    """Sizes as written; 1 if not written."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def world_size(self) -> int:
        """Number of devices. Experts share them, so their size does not multiply it."""
        return self.data * self.context * self.tensor * self.pipeline

    def __str__(self) -> str:
        sizes = {letter: getattr(self, name) for letter, name in DIMENSIONS.items()}
        return "".join(f"{letter}{size}" for letter, size in sizes.items() if size > 1 or letter == "d")


@dataclass(frozen=True)
class BackendSpec:
    """Servers or trainers as one key specifies them; None if left open."""

    backend: str | None = None
    dims: ParallelDims | None = None
    ffn: ParallelDims | None = None
    """Sizes of the expert layers in a hybrid; `dims` are then those of attention."""

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
    """The client of the servers if there is no trainer."""
    colocated: bool = False

    def __str__(self) -> str:
        parts = [str(part) for part in (self.rollout, self.train, self.client) if part is not None]
        return self.keyword or ("|" if self.colocated else "+").join(parts)


@dataclass(frozen=True, kw_only=True)
class ParallelStrategy(ParallelDims):
    """One engine with its sizes."""

    backend: str
    expert_tensor: int = 1

    @classmethod
    def of(cls, part: BackendSpec) -> "ParallelStrategy":
        """From a `part` with name and sizes."""
        dims = part.dims
        assert part.backend and dims, "name and sizes must be set"
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
        """The sizes as written, without the engine."""
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
    """Size of the cluster: nodes, and GPUs per node ("auto": those of the machine)."""

    n_nodes: int = 1
    n_gpus_per_node: int | Literal["auto"] = "auto"
    type: str = "local"


@dataclass(frozen=True)
class Allocation:
    """What runs on which devices. `reasons` explains the value of each backend key."""

    rollout: ParallelStrategy | None = None
    actor: ParallelStrategy | None = None
    """The trainer: `actor`, or `model` in supervised and reward-model training."""
    evaluators: ParallelStrategy | None = None
    """Servers for evaluations alone."""
    ref: ParallelStrategy | None = None
    critic: ParallelStrategy | None = None
    eval_only: bool = False
    shared_device: bool = False
    """One server and one trainer share a GPU and its memory."""
    num_gpus: int = 0
    """GPUs of trainers and the servers of training together; 0 on the CPU."""
    reasons: dict[str, str] = field(default_factory=dict)
    cannot_start: tuple[Problem, ...] = ()
    """What this framework does not support: shown in the plan, an error at a start."""
    needs: tuple[Problem, ...] = ()
    """What the cluster or this machine lacks: shown in the plan, an error at a start."""
    warnings: tuple[Problem, ...] = ()
    """Shown in the plan; no error."""

    @property
    def train(self) -> ParallelStrategy | None:
        return self.actor

    @property
    def for_evaluations(self) -> "Allocation | None":
        """Its servers for evaluations alone, in place of those of training, if they are of another engine."""
        others = self.evaluators
        if others is None or self.rollout is None or others.backend == self.rollout.backend:
            return None
        return replace(self, rollout=others, evaluators=None, shared_device=False)

    def server(self, index: int) -> ParallelStrategy:
        """Of the server with this index: those for evaluations alone follow those of training."""
        assert self.rollout is not None, "it has servers"
        return self.rollout if self.evaluators is None or index < self.rollout.data else self.evaluators

    @property
    def servers_only(self) -> bool:
        return self.rollout is not None and self.actor is None and not self.eval_only

    def __str__(self) -> str:
        parts = [str(part) for part in (self.rollout, self.actor) if part is not None]
        return "+".join([*parts, "eval"] if self.eval_only else parts)
