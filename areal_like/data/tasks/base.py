"""The task interface: rows to train and evaluate on, and the reward of an answer."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, overload

TRAIN, TEST = "train", "test"

Row = dict[str, Any]
RewardValue = float | dict[str, float]
"""A number, or named parts that are summed. A part named `score` is not summed: evaluations report it."""


class RowSequence(Sequence[Row]):
    """Rows that are created or read on access."""

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
    """A class that is created with `task.args`. It may have `reward(prompt, completion, **row)`, sync or async: the
    reward of an answer to one of its rows, unless `reward.name` is set."""

    def rows(self, split: str) -> Sequence[Row]:
        """The rows of `train` or `test`, always the same and in the same order: JSON-compatible dicts with at least a
        `prompt`; those for supervised training also need an `answer`."""
        ...
