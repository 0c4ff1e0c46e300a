"""What ranks tell each other on the CPU, independent of the collectives of training."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from areal_like.process.errors import TimedOut
from areal_like.training.world import World


class RankVote:
    """Uses its own process group on the CPU, so that a background thread can vote without interleaving with the
    collectives of training. All ranks must create one at the same time."""

    def __init__(self, world: World, timeout_s: float, key: str) -> None:
        """`key` is the configuration key of the timeout, for messages."""
        self.rank, self.size = world.rank, world.size
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

    def gather(self, text: str, what: str) -> list[str]:
        """The texts of all ranks."""
        if self._group is None:
            return [text]
        content = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._within_limit(what):
            dist.all_gather(lengths, torch.tensor([len(content)]), group=self._group)
            longest = max(int(length.item()) for length in lengths)
            texts = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
            dist.all_gather(texts, nn.functional.pad(content, (0, longest - len(content))), group=self._group)
        return [
            bytes(padded[: int(length.item())].tolist()).decode() for padded, length in zip(texts, lengths, strict=True)
        ]

    @contextmanager
    def _within_limit(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as fault:
            raise TimedOut(f"{self._limit} {what}: {fault}") from fault
