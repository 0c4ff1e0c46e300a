"""What a task is: rows to learn from and to be tested on, and what an answer to one of them is worth."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, overload

TRAIN, TEST = "train", "test"

Row = dict[str, Any]
RewardValue = float | dict[str, float]
"""A number, or named parts that are added up. A part named `score` is not added: it is what evaluations report."""


class RowSequence(Sequence[Row]):
    """Rows that are made or read when they are asked for."""

    @abstractmethod
    def row(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self.row(each) for each in range(*index.indices(len(self)))]
        return self.row(index)


class Task(Protocol):
    """A class made with `task.args`. It may also have `reward(prompt, completion, **row)`, sync or async: what an
    answer to one of its rows is worth where `reward.name` names nothing else."""

    def rows(self, split: str) -> Sequence[Row]:
        """The rows of `train` or `test`, always the same and in the same order: dicts that JSON can hold, with at
        least a `prompt`; those for supervised training also have an `answer`."""
        ...
