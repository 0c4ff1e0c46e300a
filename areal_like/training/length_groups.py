"""How a micro-batch is divided into sequences, for attention: neighbouring sequences of equal length are one group."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from areal_like.config.attention import MIN_BATCH_LENGTH

MIN_LENGTH_STEP = 128


class LengthGroup(NamedTuple):
    """Neighbouring sequences of equal length."""

    start: int
    num: int
    length: int


class LengthGroups:
    """All groups of a micro-batch. A class of its own and no tuple or dataclass: FSDP's hooks around each layer would
    walk through every group."""

    def __init__(self, groups: Sequence[LengthGroup]) -> None:
        self.groups = tuple(groups)
        self.longest = max((group.length for group in groups), default=0)
        is_batch = len(groups) == 1 and self.longest >= MIN_BATCH_LENGTH
        self.batch_size = groups[0].num if is_batch else 0
        """Number of sequences, if all are long and of equal length; else 0."""
        self.batch_padding = length_padding(self.longest)
        """Tokens by which a kernel for such a batch pads each sequence."""

    def __iter__(self) -> Iterator[LengthGroup]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def group_by_length(lengths: Sequence[int]) -> LengthGroups:
    """Groups of neighbouring equal lengths."""
    groups, start = [], 0
    for length, members in groupby(lengths):
        count = len(list(members))
        groups.append(LengthGroup(start, count, length))
        start += count * length
    return LengthGroups(groups)


def length_padding(length: int) -> int:
    """Padding to one of 8 lengths for each power of two: a kernel that is built anew for each length is built a few
    times only. Never 0 or 1: the compiler would take these for constants, and compile once more."""
    step = max(MIN_LENGTH_STEP, 1 << max(0, (length - 1).bit_length() - 4))
    padding = -length % step
    return padding if padding > 1 else padding + MIN_LENGTH_STEP
