"""A group, the lease of it to a worker, and what came of it."""

from dataclasses import dataclass, field
from typing import Any

from areal_like.rollout.settings import RolloutSettings

TRAIN, EVALUATE = "train", "eval"


@dataclass(eq=False)
class Group:
    """One prompt with all its samples. `number` is its place in the order of submission; in an evaluation, that in
    its rows. `facts` and `blob` are there once it is finished."""

    number: int
    row: int
    seed: int
    n: int
    evaluation: int | None = None
    """The version whose evaluation this belongs to; None for training."""
    tries: int = 0
    failures: int = 0
    losses: int = 0
    """How often a process died over it."""
    error: str = ""
    """The first one."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes | memoryview = b""

    def __lt__(self, other: "Group") -> bool:
        return self.number < other.number

    @property
    def name(self) -> str:
        return str(self.number) if self.evaluation is None else f"eval-{self.evaluation}-{self.number}"

    @property
    def oldest_version(self) -> int:
        return int(min(fact["version_min"] for fact in self.facts))

    @property
    def num_tokens(self) -> int:
        return sum(fact["length"] for fact in self.facts)

    @property
    def has_spread(self) -> bool:
        """Whether its rewards differ, so that there is something to learn from it. One sample alone cannot say."""
        first = self.facts[0]["reward"]
        return len(self.facts) == 1 or any(fact["reward"] != first for fact in self.facts)

    def forget_results(self) -> None:
        self.facts, self.blob = [], b""


@dataclass(frozen=True)
class Result:
    """What a worker says of a lease. `status` is `done`, `rejected` (the workflow did not want it) or `failed`."""

    lease: str
    status: str
    facts: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes | memoryview = b""
    error: str = ""
    error_kind: str = ""
    """`reward`, `workflow`, `server` or `row`."""
    timings: dict[str, float] = field(default_factory=dict)
    """Where its time went."""


@dataclass(eq=False)
class Lease:
    """A group in the hands of a worker."""

    id: str
    group: Group
    worker: str
    server: str
    """Name of the server that generates it, and its address."""
    address: str
    tokens: int
    """Most that it may generate: what placing reckons with."""
    deadline: float
    order: dict[str, Any] | None = None

    def wire(self, settings: RolloutSettings) -> dict[str, Any]:
        """As the worker gets it."""
        group = self.group
        train = group.evaluation is None
        return {
            "id": self.id,
            "group": group.number,
            "purpose": TRAIN if train else EVALUATE,
            "split": "train" if train else "valid",
            "row": group.row,
            "server": self.address,
            "n": group.n,
            "seed": group.seed,
            "sampling": settings.sampling if train else settings.evaluation_sampling,
            "order": self.order,
        }
