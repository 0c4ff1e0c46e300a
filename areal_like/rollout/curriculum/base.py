"""What draws rows, and what decides which finished groups are trained on."""

from typing import Any, Protocol

from areal_like.data.row_table import RowTable
from areal_like.rollout.curriculum.prompts import Prompts
from areal_like.rollout.curriculum.scored_group import ScoredGroup


class OpenDraw(Protocol):
    """Rows of a batch, of which some may not be inspected yet."""

    chosen: list[int] | None
    """All of them, for a checkpoint. None: the draw of this number can be made again."""

    def rows(self) -> list[int] | None:
        """Those that are not too long; fewer than a batch if there are no more. None while some are not inspected."""

    def unknown(self) -> list[int]:
        """The rows to inspect."""


class RowSampler(Protocol):
    """Draws the rows of one batch after the other."""

    name: str
    """A checkpoint is continued by the sampler of the same name alone."""

    def begin(self, table: RowTable, prompts: Prompts, size: int, number: int) -> OpenDraw:
        """The draw of this number. The same number gives the same random numbers. Of the rows of one prompt it gives
        the first."""

    def ended(self, drawn: int, size: int) -> None:
        """The draw has given so many rows of the wanted size."""

    def observe(self, group: ScoredGroup) -> None:
        """A finished group shows how difficult its row is."""

    def metrics(self) -> dict[str, float]: ...

    def state(self) -> bytes: ...

    def resume(self, state: bytes, step: int) -> None: ...


class Gate(Protocol):
    def admits(self, group: ScoredGroup) -> bool:
        """Whether a finished group is trained on. It may be asked more than once."""


class StatefulGate(Gate, Protocol):
    """It follows what it has seen, and is saved in checkpoints."""

    name: str

    def observe(self, group: ScoredGroup) -> None: ...

    def metrics(self) -> dict[str, float]: ...

    def state(self) -> Any:
        """As JSON has it."""

    def resume(self, state: Any) -> None: ...
