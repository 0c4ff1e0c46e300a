"""Groups, their leases to workers, and the results."""

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_like.data.row_table import hash_text
from areal_like.data.votes import VoteRule
from areal_like.rollout.conversation_facts import conversation_numbers, conversations_of
from areal_like.rollout.evaluation.evaluated_rows import EvaluatedRows
from areal_like.rollout.lease_limit import LIMITS
from areal_like.rollout.settings import RolloutSettings
from areal_like.rollout.trajectory import TEMPLATE_BREAKS

TRAIN, EVALUATE = "train", "eval"


@dataclass(eq=False)
class Group:
    """One prompt with all its samples. `number` is its place in the order of submission, or among the rows of its
    evaluation. `facts` and `blob` are set when it is finished."""

    number: int
    row: int
    seed: int
    n: int
    evaluation: int | None = None
    """The version that is evaluated; None for training."""
    row_hash: int = 0
    evaluated: EvaluatedRows | None = None
    """Whose row it is; None for training."""
    tries: int = 0
    failures: int = 0
    losses: int = 0
    """How often its worker died."""
    error: str = ""
    """The first error."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes | memoryview = b""
    is_admitted: bool = True
    """By the curriculum, where no other group takes the place of one that is left out."""

    def __lt__(self, other: "Group") -> bool:
        return self.number < other.number

    @property
    def name(self) -> str:
        if self.evaluated is None:
            return str(self.number)
        benchmark = f"{self.evaluated.name}-" if self.evaluated.name else ""
        return f"eval-{benchmark}{self.evaluation}-{self.number}"

    @property
    def oldest_version(self) -> int:
        return oldest_version(self.facts)

    @property
    def num_tokens(self) -> int:
        return sum(fact["length"] for fact in self.facts)

    def has_spread(self, rule: VoteRule) -> bool:
        return has_spread(self.facts, rule)

    def record(self) -> dict[str, Any]:
        """For the ledger. Conversations and breaks are in it where a conversation has several samples."""
        breaks = [int(fact["metrics"].get(TEMPLATE_BREAKS) or 0) for fact in self.facts]
        conversations = conversation_numbers(self.facts)
        return {
            "group": self.number,
            "row": self.row,
            "row_hash": hash_text(self.row_hash),
            "prompt_hash": self.facts[0].get("prompt_hash", ""),
            "versions": [self.oldest_version, max(fact["version_max"] for fact in self.facts)],
            "rewards": [fact["reward"] for fact in self.facts],
            "lengths": [fact["length"] for fact in self.facts],
            **({"conversations": conversations} if len(set(conversations)) < len(conversations) else {}),
            **({"template_breaks": breaks} if any(breaks) else {}),
        }

    def count_failure(self, failure: "Result | None") -> None:
        if failure is not None:
            self.failures += 1
            self.error = self.error or failure.error

    @property
    def failure(self) -> dict[str, Any]:
        """For the ledger."""
        return {"row": self.row, "error": self.error}

    def done(self, result: "Result", is_admitted: bool) -> None:
        self.facts, self.blob, self.is_admitted = result.facts, result.blob, is_admitted

    def forget_results(self) -> None:
        self.facts, self.blob = [], b""


def oldest_version(facts: Sequence[dict[str, Any]]) -> int:
    """Of the weights that generated the samples."""
    return int(min(fact["version_min"] for fact in facts))


def votes(fact: dict[str, Any], rule: VoteRule) -> bool:
    """Whether a sample counts in its group's baseline."""
    return rule.votes(fact["reward"] is not None, fact["loss_tokens"], fact["finish"] == "length")


def answer_votes(samples: Sequence[dict[str, Any]], rule: VoteRule) -> bool:
    """Whether an answer, given as its samples, counts in its group's baseline: if one of them does."""
    return any(votes(fact, rule) for fact in samples)


def has_spread(facts: Sequence[dict[str, Any]], rule: VoteRule) -> bool:
    """Whether the rewards of a group that vote differ, so that it gives a gradient. True for a group of one sample or
    conversation that votes; one that is left of several has nothing to be compared with. With several agents, whether
    those of one agent differ."""
    num_answers = len(conversations_of(facts))
    for agent in {fact.get("agent", "") for fact in facts}:
        answers = conversations_of([fact for fact in facts if fact.get("agent", "") == agent])
        voting = [samples for samples in answers if answer_votes(samples, rule)]
        if len(voting) == num_answers == 1:
            return True
        if len(voting) > 1 and len({fact["reward"] for each in voting for fact in each if votes(fact, rule)}) > 1:
            return True
    return False


@dataclass(frozen=True)
class Result:
    """The result of a lease. `status` is `done`, `rejected` (the workflow returned None) or `failed`."""

    lease: str
    status: str
    facts: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes | memoryview = b""
    error: str = ""
    error_kind: str = ""
    """`reward`, `workflow`, `environment`, `infrastructure`, `server` or `row`."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""
    texts: dict[str, Any] = field(default_factory=dict)
    """Of an evaluation: the texts of prompt and answers."""


@dataclass(eq=False)
class Lease:
    """A group that a worker runs."""

    id: str
    group: Group
    worker: str
    server: str
    """Name of its server."""
    address: str
    """Address of its server."""
    tokens: int
    """The most that it may generate: its load on the server."""
    deadline: float
    priority: int
    """Smaller ones are generated first, where a server has a queue."""
    slot: dict[str, Any] | None = None
    """Its fixed place in the batches of its server; None in asynchronous mode."""

    def no_result(self, limit_s: float) -> Result:
        error = f"{self.worker} had no result after {limit_s:g} s ({LIMITS})"
        return Result(self.id, "failed", error=error, error_kind="server")

    def wire(self, settings: RolloutSettings) -> dict[str, Any]:
        """The lease as it is sent to the worker."""
        group, evaluated = self.group, self.group.evaluated
        return {
            "id": self.id,
            "group": group.number,
            "purpose": TRAIN if evaluated is None else EVALUATE,
            "split": "train" if evaluated is None else evaluated.split,
            "row": group.row,
            "row_hash": hash_text(group.row_hash),
            "server": self.address,
            "n": group.n,
            "seed": group.seed,
            "sampling": settings.sampling if evaluated is None else evaluated.sampling,
            "order": self.slot,
            "priority": self.priority,
        }


class Leases:
    """Open leases by id and by worker. Results of any other lease are ignored."""

    def __init__(self) -> None:
        self.num_closed = 0
        self._by_id: dict[str, Lease] = {}
        self._by_worker: dict[str, dict[str, Lease]] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._cancelled: dict[str, list[str]] = {}
        self._last_calls: dict[str, int] = {}
        """Number of the last call for leases, by worker."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_id.values()))

    def open(self, lease: Lease) -> None:
        self._by_id[lease.id] = lease
        self._by_worker.setdefault(lease.worker, {})[lease.id] = lease
        heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def get(self, lease_id: str, worker: str) -> Lease | None:
        """None if it is cancelled or another worker's."""
        lease = self._by_id.get(lease_id)
        return lease if lease is not None and lease.worker == worker else None

    def close(self, lease: Lease) -> None:
        self.num_closed += 1
        del self._by_id[lease.id]
        del self._by_worker[lease.worker][lease.id]

    def of_worker(self, worker: str) -> list[Lease]:
        return list(self._by_worker.get(worker, {}).values())

    def not_held(self, worker: str, call: int, held: Collection[str]) -> list[Lease]:
        """Open leases that a worker did not hold at this call. By then it had the answers of its earlier calls,
        or had given them up: what is missing never runs. A call that a later one has overtaken tells nothing."""
        if call <= self._last_calls.get(worker, 0):
            return []
        self._last_calls[worker] = call
        leases, known = self.of_worker(worker), set(held)
        for lease_id in held:
            if self.get(lease_id, worker) is None:
                self.add_cancelled(worker, lease_id)
        return [lease for lease in leases if lease.id not in known]

    def is_last_call(self, worker: str, call: int) -> bool:
        """The worker has given up its earlier calls: leases in their answers would be lost."""
        return call == self._last_calls.get(worker)

    def worker_started(self, worker: str) -> None:
        """It counts its calls from 1 again."""
        self._last_calls.pop(worker, None)
        self._cancelled.pop(worker, None)

    def add_cancelled(self, worker: str, lease_id: str) -> None:
        """The worker is to stop it."""
        cancelled = self._cancelled.setdefault(worker, [])
        if lease_id not in cancelled:
            cancelled.append(lease_id)

    def take_cancelled(self, worker: str) -> list[str]:
        """Cancelled leases of the worker, each returned once."""
        return self._cancelled.pop(worker, [])

    def overdue(self, now: float) -> list[Lease]:
        """Leases past their deadline, each returned once."""
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now:
            lease = self._by_id.get(heapq.heappop(self._deadlines)[1])
            if lease is not None:
                overdue.append(lease)
        return overdue
