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

from areal_like.training.attention import LengthGroup, length_groups

MAX_PADDING_SEQUENCE = 128
"""Most tokens of a sequence that only fills up: what attention kernels take at once."""


class MicroBatch(NamedTuple):
    """What one forward pass takes. A sequence ends before its last token that counts: nothing is predicted from that
    one on, so that it need not be computed."""

    input_ids_T: Tensor
    position_ids_T: Tensor
    runs: tuple[LengthGroup, ...]
    cu_seqlens: Tensor
    """Where each sequence begins among the input tokens, and where the last one ends; int32, as kernels take it."""
    predicts_P: Tensor
    """From which input positions a token is predicted that counts."""
    targets_P: Tensor
    loss_tokens_N: tuple[int, ...]
    """Predictions of each sequence; they stand in the order of the sequences."""
    fields: dict[str, Tensor]
    """What else is known of the predicted tokens, each [P]."""
    rows_N: NDArray[np.int64]
    """Which sequences these are."""
    tokens_P: NDArray[np.int64]
    """Where the predicted tokens stand among all tokens of the sequences."""

    def attention_kwargs(self) -> dict[str, Any]:
        """Where sequences begin and end, as attention is told: ours by its runs, that of transformers by names of its
        own."""
        longest = max((run.length for run in self.runs), default=0)
        return {
            "runs": self.runs,
            **{"cu_seq_lens_q": self.cu_seqlens, "cu_seq_lens_k": self.cu_seqlens},
            **{"max_length_q": longest, "max_length_k": longest},
        }


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
    def target_mask(self) -> NDArray[np.bool_]:
        """Tokens that count. Nothing predicts the first of a sequence, so it never does."""
        target_mask = self.loss_mask.astype(bool)
        target_mask[self.starts_N[self.lengths_N > 0]] = False
        return target_mask

    @cached_property
    def loss_tokens_N(self) -> NDArray[np.int64]:
        """How many tokens count, of each sequence."""
        return self.sums(self.target_mask).astype(np.int64)

    @cached_property
    def input_lengths_N(self) -> NDArray[np.int64]:
        """How many tokens of each sequence have to be computed: those before the last that counts."""
        place = np.where(self.target_mask, self.places, 0)
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

    def micro_batch(self, rows: Sequence[int] | NDArray[np.int64], device: torch.device, pad_to: int = 0) -> MicroBatch:
        """Of these sequences, sorted by length: neighbours of one length are computed together. Where these are fewer
        than `pad_to` tokens, sequences follow from which nothing is predicted."""
        rows_N = np.asarray(rows, dtype=np.int64)
        rows_N = rows_N[np.argsort(self.input_lengths_N[rows_N], kind="stable")]
        input_lengths_N = self.input_lengths_N[rows_N]
        offsets_N = np.cumsum(input_lengths_N) - input_lengths_N
        places_T = np.arange(int(input_lengths_N.sum())) - np.repeat(offsets_N, input_lengths_N)
        tokens_T = np.repeat(self.starts_N[rows_N], input_lengths_N) + places_T
        predicts_P = np.flatnonzero(self.target_mask[tokens_T + 1])
        tokens_P = tokens_T[predicts_P] + 1

        def tensor(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)

        lengths = input_lengths_N.tolist()
        fake = _padding_lengths(pad_to - len(tokens_T), max(lengths, default=1))
        fake_places = np.concatenate([np.arange(length) for length in fake]) if fake else np.zeros(0, np.int64)
        return MicroBatch(
            input_ids_T=tensor(np.concatenate([self.token_ids[tokens_T], 0 * fake_places]), torch.int64),
            position_ids_T=tensor(np.concatenate([places_T, fake_places]), torch.int64),
            runs=length_groups(lengths + fake),
            cu_seqlens=tensor(np.cumsum([0, *lengths, *fake]), torch.int32),
            predicts_P=tensor(predicts_P, torch.int64),
            targets_P=tensor(self.token_ids[tokens_P], torch.int64),
            loss_tokens_N=tuple(self.loss_tokens_N[rows_N].tolist()),
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


def concatenate(parts: Sequence[Mapping[str, NDArray[Any]]], fields: Sequence[str]) -> Sequences:
    """Of several groups of arrays `token_ids`, `loss_mask`, `lengths` and `fields`."""

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([part[name] for part in parts])

    lengths_N = all_of("lengths").astype(np.int64)
    return Sequences(all_of("token_ids"), all_of("loss_mask"), lengths_N, {name: all_of(name) for name in fields})


def _padding_lengths(num_tokens: int, longest: int) -> list[int]:
    """Of sequences that fill a micro-batch up. They are no longer than the real ones, which a model can have limits
    for, and short, so that attention among them costs little."""
    length = min(longest, MAX_PADDING_SEQUENCE)
    whole, rest = divmod(max(0, num_tokens), length)
    return [length] * whole + [rest] * (rest > 0)


def dummy_micro_batch(device: torch.device) -> MicroBatch:
    """The smallest micro-batch there is, for a rank that has none left while others do."""
    alone = Sequences(np.zeros(2, np.int32), np.ones(2, np.uint8), np.array([2]))
    return alone.micro_batch([0], device)
