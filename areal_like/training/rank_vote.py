"""What ranks tell each other on the CPU, independent of the collectives of training."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from areal_like.process import pulse
from areal_like.process.errors import TimedOut
from areal_like.training.world import World
from areal_like.weights.text_gather import gather_texts

ROUNDS = 60
"""The ranks tell each other that they still wait so many times within the limit."""

log = logging.getLogger(__name__)


class RankVote:
    """Uses its own process group on the CPU, so that a background thread can vote without interleaving with the
    collectives of training. All ranks must create one at the same time."""

    def __init__(self, world: World, timeout_s: float, key: str) -> None:
        """`key` is the configuration key of the timeout, for messages."""
        self.rank, self.size, self._round_s = world.rank, world.size, timeout_s / ROUNDS
        self._group, self._key, self._timeout_s = None, key, timeout_s
        self._store, self._reports = world.store, 0
        if world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def all_succeeded(self, succeeded: bool) -> bool:
        """Whether all ranks pass True; waits for all of them."""
        return not self.sum(int(not succeeded), "that it wrote its part of a checkpoint")

    def sum(self, number: int, what: str) -> int:
        """Over all ranks. `what` each of them reports is for messages."""
        total = torch.tensor([number])
        if self._group is not None:
            with self._within_limit(what):
                dist.all_reduce(total, group=self._group)
        return int(total.item())

    def wait_for(self, is_done: Callable[[float], bool], what: str, check: Callable[[], None] | None = None) -> None:
        """Until it is done on every rank. `is_done` waits for so many seconds at most; `check` may end the wait. The
        ranks that are done wait on the CPU: in a collective on GPUs the watchdog would end them meanwhile."""
        began = time.monotonic()
        while self.sum(int(not is_done(self._round_s)), f"whether it waits for {what}"):
            log.info("ranks wait for %s, %.0f s so far", what, time.monotonic() - began)
            if check is not None:
                check()

    def gather(self, text: str, what: str) -> list[str]:
        """The texts of all ranks."""
        if self._group is None:
            return [text]
        with self._within_limit(what):
            return gather_texts(text, self._group)

    @contextmanager
    def _within_limit(self, what: str) -> Iterator[None]:
        self._reports += 1
        try:
            with pulse.phase(pulse.COLLECTIVE):
                if self._store is not None:
                    self._store.set(self._name_of(self.rank), str(self._reports))
                yield
        except RuntimeError as fault:
            who = self._absent() or "another rank"
            limit = f"{self._key}: {who} did not report within {self._timeout_s} s"
            raise TimedOut(f"{limit} {what}: {fault}") from fault

    def _name_of(self, rank: int) -> str:
        assert self._group is not None
        return f"reports/{self._group.group_name}/{rank}"

    def _absent(self) -> str:
        """The ranks that have reported less often than this one: those that hang or have ended."""
        if self._store is None:
            return ""
        try:
            others = [rank for rank in range(self.size) if rank != self.rank]
            return ", ".join(f"trainer/{rank}" for rank in others if self._count_of(rank) < self._reports)
        except RuntimeError:
            return "trainer/0"  # it holds the store

    def _count_of(self, rank: int) -> int:
        name = self._name_of(rank)
        return int(self._store.get(name)) if self._store.check([name]) else 0
