"""Keys and values of running sequences: one slot (row) each, and rows 0 to R-1 are the running ones.

The cache grows by doubling up to a bound; a step of decoding reads no row and no column that nobody uses.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

BLOCK_SIZE = 16
"""Columns come in blocks, so that each row begins at the same alignment whatever the capacity: same bits."""


def round_up_to_block(tokens: int) -> int:
    """`tokens`, rounded up to whole blocks."""
    return -(-tokens // BLOCK_SIZE) * BLOCK_SIZE


@dataclass(frozen=True)
class PrefillWrite:
    """Whole sequences from position 0: number `source` of the batch is kept in each of `rows`."""

    rows: torch.Tensor
    source: torch.Tensor


@dataclass(frozen=True)
class DecodeWrite:
    """One token for each of the rows 0 to R-1, at the column `at` of its row; `width` columns are read."""

    rows: torch.Tensor
    at: torch.Tensor
    width: int


@dataclass(frozen=True)
class ChunkWrite:
    """A part of one sequence of `total` tokens, from `start` on. It stands beside the rows until all of it is there."""

    start: int
    total: int


CacheWrite = PrefillWrite | DecodeWrite | ChunkWrite


class KVCacheLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, [rows, heads, columns, size]. What is not in use is finite: zero or old."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = (0, 0)
        self.plan: CacheWrite | None = None
        self._beside: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = _empty_like(key_states, *self.capacity)
        self.values = _empty_like(value_states, *self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if isinstance(self.plan, PrefillWrite):
            columns = key_states.shape[2]
            self.keys[:, :, :columns].index_copy_(0, self.plan.rows, key_states.index_select(0, self.plan.source))
            self.values[:, :, :columns].index_copy_(0, self.plan.rows, value_states.index_select(0, self.plan.source))
            return key_states, value_states
        if isinstance(self.plan, ChunkWrite):
            return self._put_beside(key_states, value_states, self.plan)
        assert self.plan is not None
        self.keys[self.plan.rows, :, self.plan.at] = key_states[:, :, 0]
        self.values[self.plan.rows, :, self.plan.at] = value_states[:, :, 0]
        rows, width = len(self.plan.rows), self.plan.width
        return self.keys[:rows, :, :width], self.values[:rows, :, :width]

    def _put_beside(
        self, keys: torch.Tensor, values: torch.Tensor, piece: ChunkWrite
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if piece.start == 0 or self._beside is None:
            shapes = [(1, states.shape[1], piece.total, states.shape[3]) for states in (keys, values)]
            self._beside = keys.new_empty(shapes[0]), values.new_empty(shapes[1])
        end = piece.start + keys.shape[2]
        for beside, new in zip(self._beside, (keys, values), strict=True):
            beside[:, :, piece.start : end] = new
        return self._beside[0][:, :, :end], self._beside[1][:, :, :end]

    def place(self, rows: torch.Tensor) -> None:
        assert self._beside is not None, "no sequence stands beside the rows"
        for states, beside in zip((self.keys, self.values), self._beside, strict=True):
            states[:, :, : beside.shape[2]].index_copy_(0, rows, beside.expand(len(rows), -1, -1, -1))

    def drop_beside(self) -> None:
        self._beside = None

    def grow(self, rows: int, columns: int, used_rows: int, used_columns: int) -> None:
        self.capacity = (rows, columns)
        if self.is_initialized:
            for name in ("keys", "values"):
                old: torch.Tensor = getattr(self, name)
                new = _empty_like(old, rows, columns)
                kept = old[:used_rows, :, :used_columns]
                new[: kept.shape[0], :, : kept.shape[2]] = kept
                setattr(self, name, new)

    def move(self, to: torch.Tensor, source: torch.Tensor, columns: int) -> None:
        if self.is_initialized:
            for states in (self.keys[:, :, :columns], self.values[:, :, :columns]):
                states.index_copy_(0, to, states.index_select(0, source))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.capacity[1], 0

    def get_seq_length(self) -> int:
        """Rows have lengths of their own; who runs the model gives positions."""
        return 0

    def get_max_length(self) -> int:
        return self.capacity[1]


class KVCache(Cache):
    """All layers. `limit` bounds rows times columns."""

    def __init__(self, num_layers: int, limit: int) -> None:
        self.slots = [KVCacheLayer() for _ in range(num_layers)]
        super().__init__(layers=list(self.slots))
        self.limit = limit
        self.rows = self.columns = 0

    def plan(self, plan: CacheWrite) -> None:
        """What the next run of the model does to the cache."""
        for layer in self.slots:
            layer.plan = plan

    def fits(self, rows: int, columns: int) -> bool:
        return rows * round_up_to_block(columns) <= self.limit

    def reserve(self, rows: int, columns: int, used_rows: int, used_columns: int) -> None:
        """Makes room for so many rows and columns, which `fit`; what is in use stays."""
        if rows <= self.rows and columns <= self.columns:
            return
        exact = rows, round_up_to_block(columns)
        generous = (
            self.rows if rows <= self.rows else max(rows, 2 * self.rows),
            self.columns if columns <= self.columns else max(round_up_to_block(columns), 2 * self.columns),
        )
        self.rows, self.columns = generous if generous[0] * generous[1] <= self.limit else exact
        for layer in self.slots:
            layer.grow(self.rows, self.columns, used_rows, used_columns)

    def move(self, to: torch.Tensor, source: torch.Tensor, columns: int) -> None:
        """Copies the first columns of the rows `source` over the rows `to`."""
        for layer in self.slots:
            layer.move(to, source, columns)

    def place(self, rows: torch.Tensor) -> None:
        """Copies the sequence that stands beside the rows into some of them."""
        for layer in self.slots:
            layer.place(rows)

    def drop_beside(self) -> None:
        for layer in self.slots:
            layer.drop_beside()

    def reset(self) -> None:
        """Nothing that was computed stays, so nothing that is not finite can."""
        for layer in self.slots:
            layer.reset()


def _empty_like(states: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return states.new_zeros(rows, states.shape[1], columns, states.shape[3])
