"""A batch of supervised training, and how many are to come."""

from typing import NamedTuple

from areal_like.training.sequences import Sequences


class DataLength(NamedTuple):
    """As far as it is known: `rows` includes those that may be left out later."""

    rows: int
    steps_per_epoch: int
    total_steps: int


class SupervisedBatch(NamedTuple):
    """`digest` is that of the rows, `length` what is known once they were inspected."""

    sequences: Sequences
    digest: str
    length: DataLength
