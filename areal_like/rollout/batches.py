"""Batches of training steps: their groups, and the groups of each rank."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from areal_like.process.errors import HttpError
from areal_like.rollout.conversation_facts import conversation_numbers
from areal_like.rollout.groups import Group
from areal_like.rollout.settings import RolloutSettings, RunLength

FACTS = ("reward", "rewards", "length", "generated", "loss_tokens", "finish", "version_min", "version_max")
OPTIONAL_FACTS = ("agent", "run", "observed_in_loss")


@dataclass(eq=False)
class RolloutBatch:
    """The groups of one step in the order of submission, with the rank of each. Each rank may fetch it any number of
    times until the step is done."""

    step: int
    groups: list[Group]
    ranks: list[int]
    world: int
    length: RunLength
    """As it is known when the batch is formed: the same for all ranks."""
    fetched_by: set[int] = field(default_factory=set)

    def header(self, rank: int) -> dict[str, Any]:
        """All samples of the batch, and the indices of the rank's own, in the order of its blobs."""
        samples, length = self.samples, self.length
        return {
            "step": self.step,
            "samples": samples,
            "shard": [index for index, sample in enumerate(samples) if sample["rank"] == rank],
            "total_steps": length.total_steps,
            "steps_per_epoch": length.steps_per_epoch,
        }

    def blobs(self, rank: int) -> list[bytes | memoryview]:
        return [group.blob for group, owner in zip(self.groups, self.ranks, strict=True) if owner == rank]

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """The facts of all samples; the same for each rank."""
        return [
            {
                **{"group": group.number, "sample": index, "conversation": conversation},
                **{name: fact[name] for name in FACTS},
                **{name: fact[name] for name in OPTIONAL_FACTS if name in fact},
                "rank": rank,
            }
            for group, rank in zip(self.groups, self.ranks, strict=True)
            for index, (fact, conversation) in enumerate(
                zip(group.facts, conversation_numbers(group.facts), strict=True)
            )
        ]


def balance(tokens: Sequence[int], world: int) -> list[int]:
    """A rank for each group, balanced by tokens. Group counts differ by at most one; the longest group goes first, each
    to the rank with the fewest tokens."""
    least, ranks_with_one_more = divmod(len(tokens), world)
    load, count, chosen = [0] * world, [0] * world, [0] * len(tokens)
    for index in sorted(range(len(tokens)), key=lambda i: (-tokens[i], i)):
        full = least + (1 if ranks_with_one_more else 0)
        rank = min((r for r in range(world) if count[r] < full), key=lambda r: (load[r], r))
        count[rank] += 1
        load[rank] += tokens[index]
        chosen[index] = rank
        if count[rank] == least + 1:
            ranks_with_one_more -= 1
    return chosen


def without_equal(groups: Sequence[Group], settings: RolloutSettings) -> list[Group]:
    """Without groups of equal rewards or of another difficulty, where these are dropped and not replaced; all groups if
    there is no other."""
    if settings.refill:
        return list(groups)
    return [group for group in groups if group.is_admitted and not is_equal(group, settings)] or list(groups)


def is_equal(group: Group, settings: RolloutSettings) -> bool:
    """Whether dynamic sampling leaves it out."""
    return settings.dynamic_sampling and not group.has_spread(settings.vote_rule)


class Batches:
    """The batches that are formed and not done. Batch `next_step` is formed next; all before `done_steps` are trained
    on."""

    def __init__(self, first_step: int) -> None:
        self.next_step = self.done_steps = first_step
        self._kept: dict[int, RolloutBatch] = {}

    def get(self, step: int, world: int) -> RolloutBatch | None:
        """None if it is not formed yet."""
        if step < self.done_steps:
            raise HttpError(409, f"batch {step} is already trained on: the run is at step {self.done_steps}")
        if step > self.next_step:
            raise HttpError(409, f"batch {step} comes after batch {self.next_step}, which is not formed yet")
        batch = self._kept.get(step)
        if batch is not None and batch.world != world:
            raise HttpError(
                409, f"batch {step} was formed for {batch.world} ranks, and a trainer of {world} requests it"
            )
        return batch

    def form(self, groups: Sequence[Group], world: int, length: RunLength) -> RolloutBatch:
        ranks = balance([group.num_tokens for group in groups], world)
        batch = RolloutBatch(self.next_step, list(groups), ranks, world, length)
        self._kept[batch.step] = batch
        self.next_step += 1
        return batch

    def done(self, step: int) -> RolloutBatch | None:
        """Removes and returns the batch; None if the step was done before."""
        if step < self.done_steps:
            return None
        if step not in self._kept or step > self.done_steps:
            raise HttpError(409, f"step {step} cannot be done: the run is at step {self.done_steps}")
        self.done_steps = step + 1
        return self._kept.pop(step)

    def from_step(self, step: int) -> list[Group]:
        """The groups of the batches from `step` on."""
        return [group for batch in self._kept.values() if batch.step >= step for group in batch.groups]
