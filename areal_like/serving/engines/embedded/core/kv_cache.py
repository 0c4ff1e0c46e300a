"""KV cache of the running sequences: one slot (row) each; rows 0 to R-1 are in use.

The cache doubles its size up to a limit, or takes all of its memory at once: on a GPU, where it then never moves and
never meets a lack of memory. A decode step reads only rows and columns that are in use.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

BLOCK_SIZE = 16
"""Columns are allocated in blocks: each row then begins at the same alignment whatever the capacity, and gives the same
bits."""


def round_up_to_block(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE) * BLOCK_SIZE


@dataclass(frozen=True)
class PrefillWrite:
    """Whole sequences from position 0: sequence `source[i]` of the batch is written to `rows[i]`."""

    rows: torch.Tensor
    source: torch.Tensor


@dataclass(frozen=True)
class DecodeWrite:
    """One token for each of the rows 0 to R-1, at column `at` of its row; `width` columns are read."""

    rows: torch.Tensor
    at: torch.Tensor
    width: int


@dataclass(frozen=True)
class ChunkWrite:
    """Tokens from `start` on of one prompt of `total` tokens. They go to a separate buffer until all are computed."""

    start: int
    total: int


CacheWrite = PrefillWrite | DecodeWrite | ChunkWrite


class KVCacheLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer, [rows, heads, columns, size]. Unused entries are finite: zero or old.
    `fixed_tokens`: size of the memory that is taken at once, of which rows and columns are a view; 0: it grows."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, fixed_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = (0, 0)
        self._fixed_tokens = fixed_tokens
        self._memory: dict[str, torch.Tensor] = {}
        self.next_write: CacheWrite | None = None
        self._chunks: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        for name, states in (("keys", key_states), ("values", value_states)):
            if self._fixed_tokens:
                self._memory[name] = states.new_zeros(self._fixed_tokens * states.shape[1] * states.shape[3])
            setattr(self, name, self._sized(name, states))
        self.is_initialized = True

    def _sized(self, name: str, states: torch.Tensor) -> torch.Tensor:
        """Space for rows and columns of the capacity; zeros, or what the fixed memory held."""
        shape = self.capacity[0], states.shape[1], self.capacity[1], states.shape[3]
        return self._memory[name][: math.prod(shape)].view(shape) if self._memory else states.new_zeros(shape)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        write = self.next_write
        if isinstance(write, PrefillWrite):
            columns = key_states.shape[2]
            self.keys[:, :, :columns].index_copy_(0, write.rows, key_states.index_select(0, write.source))
            self.values[:, :, :columns].index_copy_(0, write.rows, value_states.index_select(0, write.source))
            return key_states, value_states
        if isinstance(write, ChunkWrite):
            return self._write_chunk(key_states, value_states, write)
        assert write is not None
        self.keys[write.rows, :, write.at] = key_states[:, :, 0]
        self.values[write.rows, :, write.at] = value_states[:, :, 0]
        rows, width = len(write.rows), write.width
        return self.keys[:rows, :, :width], self.values[:rows, :, :width]

    def _write_chunk(
        self, keys: torch.Tensor, values: torch.Tensor, write: ChunkWrite
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if write.start == 0 or self._chunks is None:
            shapes = [(1, states.shape[1], write.total, states.shape[3]) for states in (keys, values)]
            self._chunks = keys.new_empty(shapes[0]), values.new_empty(shapes[1])
        end = write.start + keys.shape[2]
        for chunks, new in zip(self._chunks, (keys, values), strict=True):
            chunks[:, :, write.start : end] = new
        return self._chunks[0][:, :, :end], self._chunks[1][:, :, :end]

    def copy_chunks(self, rows: torch.Tensor) -> None:
        assert self._chunks is not None, "no chunk was computed"
        for states, chunks in zip((self.keys, self.values), self._chunks, strict=True):
            states[:, :, : chunks.shape[2]].index_copy_(0, rows, chunks.expand(len(rows), -1, -1, -1))

    def drop_chunks(self) -> None:
        self._chunks = None

    def grow(self, rows: int, columns: int, used_rows: int, used_columns: int) -> None:
        self.capacity = (rows, columns)
        if self.is_initialized:
            for name in ("keys", "values"):
                kept: torch.Tensor = getattr(self, name)[:used_rows, :, :used_columns]
                if self._memory:
                    kept = kept.clone()
                new = self._sized(name, kept)
                new[: kept.shape[0], :, : kept.shape[2]] = kept
                setattr(self, name, new)

    def reset(self) -> None:
        for states in self._memory.values() or (self.keys, self.values) if self.is_initialized else ():
            states.zero_()

    def move(self, to: torch.Tensor, source: torch.Tensor, columns: int) -> None:
        if self.is_initialized:
            for states in (self.keys[:, :, :columns], self.values[:, :, :columns]):
                states.index_copy_(0, to, states.index_select(0, source))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.capacity[1], 0

    def get_seq_length(self) -> int:
        """Rows differ in length; the model runner gives the positions."""
        return 0

    def get_max_length(self) -> int:
        return self.capacity[1]


class KVCache(Cache):
    """All layers. `limit` bounds rows times columns. `is_fixed`: the memory for the limit is taken at once."""

    def __init__(self, num_layers: int, limit: int, is_fixed: bool = False) -> None:
        self.slots = [KVCacheLayer(limit if is_fixed else 0) for _ in range(num_layers)]
        super().__init__(layers=list(self.slots))
        self.limit, self.is_fixed = limit, is_fixed
        self.rows = self.columns = 0
        self.layout = 0
        """Changes with the addresses of entries."""

    def set_write(self, write: CacheWrite) -> None:
        """Sets what the next run of the model writes."""
        for layer in self.slots:
            layer.next_write = write

    def fits(self, rows: int, columns: int) -> bool:
        return rows * round_up_to_block(columns) <= self.limit

    def reserve(self, rows: int, columns: int, used_rows: int, used_columns: int) -> None:
        """Grows to at least this size, which must fit; used entries are kept."""
        if rows <= self.rows and columns <= self.columns:
            return
        exact = rows, round_up_to_block(columns)
        generous = (
            self.rows if rows <= self.rows else max(rows, 2 * self.rows),
            self.columns if columns <= self.columns else max(round_up_to_block(columns), 2 * self.columns),
        )
        if self.is_fixed:
            self.columns = min(generous[1], self.limit // rows // BLOCK_SIZE * BLOCK_SIZE)
            self.rows = self.limit // self.columns
        else:
            self.rows, self.columns = generous if generous[0] * generous[1] <= self.limit else exact
        self.layout += 1
        for layer in self.slots:
            layer.grow(self.rows, self.columns, used_rows, used_columns)

    def move(self, to: torch.Tensor, source: torch.Tensor, columns: int) -> None:
        """Copies the first columns of the rows `source` over the rows `to`."""
        for layer in self.slots:
            layer.move(to, source, columns)

    def copy_chunks(self, rows: torch.Tensor) -> None:
        """Copies the prompt that was computed in chunks to these rows."""
        for layer in self.slots:
            layer.copy_chunks(rows)

    def drop_chunks(self) -> None:
        for layer in self.slots:
            layer.drop_chunks()

    def reset(self) -> None:
        """Zeroes everything, so that no entry stays that is not finite."""
        for layer in self.slots:
            layer.reset()
