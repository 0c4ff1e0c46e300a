"""Rows of a text environment: the seeds from which it is played."""

from collections.abc import Sequence
from typing import Any

from areal_like.config.argument_types import Count
from areal_like.data.tasks.base import Row
from areal_like.data.tasks.generated import generate_rows

ENVIRONMENT, ENVIRONMENT_ARGS, SEED = "text_environment", "environment_args", "seed"
"""Columns of a row. Its prompt is the first observation, which only a process of the environment knows."""
NUM_ROWS = 1000


class TextEnvironment:
    """`name` is `gymnasium:NAME`, `textarena:NAME`, `openenv:ADDRESS`, or a class with `reset` and `step` as
    `file.py:Class`; `args` are its own. `num_rows` seeds are divided into training and held-out rows."""

    def __init__(self, name: str, args: dict[str, Any] | None = None, num_rows: Count = NUM_ROWS) -> None:
        self._name, self._args, self._num_rows = name, args or {}, num_rows

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self._num_rows, split, self.row)

    def row(self, number: int) -> Row:
        return {"prompt": str(number), ENVIRONMENT: self._name, ENVIRONMENT_ARGS: self._args, SEED: number}


def is_played(kind: Any) -> bool:
    """Whether a class is a text environment itself, with `reset` and `step`, and no task."""
    return all(callable(getattr(kind, each, None)) for each in ("reset", "step")) and not hasattr(kind, "rows")
