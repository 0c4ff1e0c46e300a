"""Decode steps captured on a GPU and replayed: to launch one operator after another takes longer than to compute.

A captured step has fixed shapes and reads and writes at fixed addresses. So batches are padded to few sizes, token ids
and positions go through one fixed buffer, logits come out through another, and a step is captured for each number of
rows and columns and for each of the two sets of weights. The first time, it is computed operator by operator.
"""

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from areal_like.serving.engines.embedded.core.kv_cache import BLOCK_SIZE, KVCache
from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer

log = logging.getLogger(__name__)

SMALL_BATCHES = (1, 2, 4, 8)
FIRST_COLUMNS = 256
MAX_GRAPHS = 96
"""Each keeps some megabytes of a GPU; the one that was used longest ago is dropped."""
HOST_READS = frozenset(
    ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select", "unique_dim", "_unique2")
)
"""Operators whose result, or its shape, depends on values: the host waits for them, and no graph can hold them."""

Replay = Callable[[], None]


class Capture(Protocol):
    """Captures what a function computes, without computing it."""

    def __call__(self, step: Callable[[], None]) -> Replay: ...


class CudaCapture:
    """All graphs share the memory of their intermediate results: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def __call__(self, step: Callable[[], None]) -> Replay:
        if not self._graphs:  # torch fails to capture into a pool that all graphs have left
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # The other thread, which loads weights, may allocate memory meanwhile.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            step()
        self._graphs.add(graph)
        return graph.replay


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds operators that no graph can hold."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in HOST_READS or (name.startswith("index") and _has_mask(args)):
            self.found.add(name)
        return func(*args, **(kwargs or {}))


class GraphKey(NamedTuple):
    rows: int
    columns: int
    weights: tuple[int, ...]
    """Addresses: a graph computes with the set of weights that it was captured with."""


@dataclass
class GraphCounts:
    captured: int = 0
    replayed: int = 0


class DecodeGraphs:
    """`decode` computes one token for each row of a tensor of token ids and positions, and reads so many columns; it
    must have no other inputs but the weights and the cache. `max_rows`: of a batch before it is padded."""

    def __init__(
        self,
        decode: Callable[[torch.Tensor, int], torch.Tensor],
        cache: KVCache,
        weights: DoubleBuffer,
        max_rows: int,
        capture: Capture,
    ) -> None:
        self._decode, self._cache, self._weights, self._capture = decode, cache, weights, capture
        rows, device = padded_rows(max_rows), weights.device
        self._inputs_R2 = torch.zeros(rows, 2, dtype=torch.int64, device=device)
        self._host_R2 = torch.zeros(rows, 2, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._logits_RV: torch.Tensor | None = None
        self._graphs: OrderedDict[GraphKey, Replay | None] = OrderedDict()
        """None where a step was computed once: it is captured when it is needed again."""
        self._layout = cache.layout
        self._is_possible = True
        self.counts = GraphCounts()

    def shape(self, rows: int, width: int) -> tuple[int, int] | None:
        """Rows and columns of the padded step; None if the cache has no space for it."""
        padded = padded_rows(rows)
        columns = min(padded_columns(width), self._cache.limit // padded // BLOCK_SIZE * BLOCK_SIZE)
        return (padded, columns) if columns >= width and self._is_possible else None

    def run(self, tokens: NDArray[np.int64], at: NDArray[np.int64]) -> torch.Tensor | None:
        """As `ModelRunner.decode`; the logits are valid until the next call. None: this step is not to be captured."""
        count, shape = len(tokens), self.shape(len(tokens), int(at.max()) + 1)
        if shape is None or shape[0] > self._cache.rows or shape[1] > self._cache.columns:
            return None
        rows = shape[0]
        # Rows of the padding write to the first column of rows that are not in use.
        self._host_R2[:rows].zero_()
        self._host_R2[:count, 0], self._host_R2[:count, 1] = torch.from_numpy(tokens), torch.from_numpy(at)
        self._inputs_R2[:rows].copy_(self._host_R2[:rows], non_blocking=True)
        if self._layout != self._cache.layout:
            self._layout = self._cache.layout
            self._graphs.clear()
        self._run_padded(GraphKey(*shape, self._weights.addresses))
        assert self._logits_RV is not None
        return self._logits_RV[:count]

    def _run_padded(self, key: GraphKey) -> None:
        if key not in self._graphs:
            with HostReads() as reads:
                self._step(key)
            if reads.found:
                self._give_up(f"the model reads values on the host ({', '.join(sorted(reads.found))})")
            else:
                self._graphs[key] = None
                if len(self._graphs) > MAX_GRAPHS:
                    self._graphs.popitem(last=False)
            return
        replay = self._graphs[key] or self._captured(key)
        if replay is None:
            self._step(key)
            return
        self._graphs.move_to_end(key)
        self.counts.replayed += 1
        replay()

    def _captured(self, key: GraphKey) -> Replay | None:
        try:
            replay = self._capture(lambda: self._step(key))
        except RuntimeError as fault:  # of torch or CUDA, lack of memory included
            self._give_up(f"the capture failed: {fault}")
            return None
        self.counts.captured += 1
        self._graphs[key] = replay
        return replay

    def _step(self, key: GraphKey) -> None:
        logits_RV = self._decode(self._inputs_R2[: key.rows], key.columns)
        if self._logits_RV is None:
            self._logits_RV = logits_RV.new_empty(len(self._inputs_R2), logits_RV.shape[1])
        self._logits_RV[: key.rows].copy_(logits_RV)

    def _give_up(self, reason: str) -> None:
        log.warning("embedded.enforce_eager: decode steps are not captured, generation is slower: %s", reason)
        self._is_possible = False
        self._graphs.clear()


def padded_rows(rows: int) -> int:
    """The next size of a batch: multiples of 8, later of a quarter of the power of two below."""
    for size in SMALL_BATCHES:
        if rows <= size:
            return size
    step = max(8, 1 << (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def padded_columns(width: int) -> int:
    """The next power of two."""
    return max(FIRST_COLUMNS, 1 << (width - 1).bit_length())


def _has_mask(args: Any) -> bool:
    """Whether an operator of indexing selects by true and false: the number of what it selects is not known."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)
