"""A rank's sequences, and micro-batches of them as tensors: packed, never padded.

Suffixes: _N sequences, _T input tokens one after another, _P predictions that count (their number is P).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.training.attention import Run, runs_of


class MicroBatch(NamedTuple):
    """What one forward pass takes. A sequence ends before its last token that counts: nothing is predicted from that
    one on, so that it need not be computed."""

    input_ids_T: Tensor
    position_ids_T: Tensor
    runs: tuple[Run, ...]
    predicts_P: Tensor
    """From which input positions a token is predicted that counts."""
    targets_P: Tensor
    counts_N: tuple[int, ...]
    """Predictions of each sequence; they stand in the order of the sequences."""
    fields: dict[str, Tensor]
    """What else is known of the predicted tokens, each [P]."""
    rows_N: NDArray[np.int64]
    """Which sequences these are."""
    tokens_P: NDArray[np.int64]
    """Where the predicted tokens stand among all tokens of the sequences."""


@dataclass
class Sequences:
    """Arrays of all tokens, sequence after sequence, and where each begins."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[Any]
    lengths_N: NDArray[np.int64]
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Per token, such as the sampler's log-probabilities."""

    def __len__(self) -> int:
        return len(self.lengths_N)

    @cached_property
    def starts_N(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths_N) - self.lengths_N

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Tokens that count. Nothing predicts the first of a sequence, so it never does."""
        counted = self.loss_mask.astype(bool)
        counted[self.starts_N[self.lengths_N > 0]] = False
        return counted

    @cached_property
    def counts_N(self) -> NDArray[np.int64]:
        """How many tokens count, of each sequence."""
        return self.sums(self.counted).astype(np.int64)

    @cached_property
    def inputs_N(self) -> NDArray[np.int64]:
        """How many tokens of each sequence have to be computed: those before the last that counts."""
        place = np.where(self.counted, self.places, 0)
        return np.array([place[s : s + n].max(initial=0) for s, n in self._spans()], dtype=np.int64)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The place of each token in its sequence."""
        return np.arange(len(self.token_ids)) - np.repeat(self.starts_N, self.lengths_N)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """A value per token, added up over each sequence."""
        return np.array([values[s : s + n].sum() for s, n in self._spans()])

    def _spans(self) -> list[tuple[int, int]]:
        return list(zip(self.starts_N.tolist(), self.lengths_N.tolist(), strict=True))

    def micro_batch(self, rows: Sequence[int] | NDArray[np.int64], device: torch.device) -> MicroBatch:
        """Of these sequences, sorted by length: neighbours of one length are computed together."""
        rows_N = np.asarray(rows, dtype=np.int64)
        rows_N = rows_N[np.argsort(self.inputs_N[rows_N], kind="stable")]
        inputs_N = self.inputs_N[rows_N]
        offsets_N = np.cumsum(inputs_N) - inputs_N
        places_T = np.arange(int(inputs_N.sum())) - np.repeat(offsets_N, inputs_N)
        tokens_T = np.repeat(self.starts_N[rows_N], inputs_N) + places_T
        predicts_P = np.flatnonzero(self.counted[tokens_T + 1])
        tokens_P = tokens_T[predicts_P] + 1

        def tensor(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)

        return MicroBatch(
            input_ids_T=tensor(self.token_ids[tokens_T], torch.int64),
            position_ids_T=tensor(places_T, torch.int64),
            runs=runs_of(inputs_N.tolist()),
            predicts_P=tensor(predicts_P, torch.int64),
            targets_P=tensor(self.token_ids[tokens_P], torch.int64),
            counts_N=tuple(self.counts_N[rows_N].tolist()),
            fields={name: tensor(values[tokens_P], torch.float32) for name, values in self.fields.items()},
            rows_N=rows_N,
            tokens_P=tokens_P,
        )

    def scatter(self, micros: Sequence[MicroBatch], values: Sequence[Tensor]) -> NDArray[np.float32]:
        """Values of predicted tokens back at their places among all tokens; 0 elsewhere."""
        out = np.zeros(len(self.token_ids), dtype=np.float32)
        for micro, value in zip(micros, values, strict=True):
            out[micro.tokens_P] = value.detach().float().cpu().numpy()
        return out


def join(parts: Sequence[Mapping[str, NDArray[Any]]], fields: Sequence[str]) -> Sequences:
    """Of several groups of arrays `token_ids`, `loss_mask`, `lengths` and `fields`."""

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([part[name] for part in parts])

    lengths_N = all_of("lengths").astype(np.int64)
    return Sequences(all_of("token_ids"), all_of("loss_mask"), lengths_N, {name: all_of(name) for name in fields})


def one_token(device: torch.device) -> MicroBatch:
    """The smallest micro-batch there is, for a rank that has none left while others do."""
    alone = Sequences(np.zeros(2, np.int32), np.ones(2, np.uint8), np.array([2]))
    return alone.micro_batch([0], device)
