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
        self._group, self._limit = None, f"{key}: another rank did not report within {timeout_s} s"
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
        try:
            with pulse.phase(pulse.COLLECTIVE):
                yield
        except RuntimeError as fault:
            raise TimedOut(f"{self._limit} {what}: {fault}") from fault
