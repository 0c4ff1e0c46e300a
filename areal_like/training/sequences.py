"""Sequences of a rank as flat arrays, and packed micro-batches of them as tensors, without padding.

Suffixes: _N sequences, _T input tokens, _P predictions in the loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.training.length_groups import LengthGroups, group_by_length

MAX_PADDING_SEQUENCE = 128
"""Maximum tokens of a padding sequence: the block size of attention kernels."""


class MicroBatch(NamedTuple):
    """The input of one forward pass. A sequence ends before its last target token: nothing is predicted from that token
    on."""

    input_ids_T: Tensor
    position_ids_T: Tensor
    length_groups: LengthGroups
    cu_seqlens: Tensor
    """Where each sequence begins in the input tokens, and the end of the last; int32, as kernels require."""
    predicts_P: Tensor
    """Input positions from which a target token is predicted."""
    targets_P: Tensor
    loss_tokens_N: tuple[int, ...]
    """Number of predictions of each sequence; predictions are in the order of the sequences."""
    target_cu_seqlens: Tensor
    """Where each sequence begins among the predictions, and the end of the last."""
    fields: dict[str, Tensor]
    """Further values of the target tokens, each [P]."""
    rows_N: NDArray[np.int64]
    """Indices of the sequences."""
    tokens_P: NDArray[np.int64]
    """Indices of the target tokens among all tokens of the sequences."""

    def attention_kwargs(self) -> dict[str, Any]:
        """Sequence boundaries: `length_groups` for our attention, the others for that of transformers."""
        longest = self.length_groups.longest
        return {
            "length_groups": self.length_groups,
            **{"cu_seq_lens_q": self.cu_seqlens, "cu_seq_lens_k": self.cu_seqlens},
            **{"max_length_q": longest, "max_length_k": longest},
        }


@dataclass
class Sequences:
    """Arrays over all tokens of the sequences, in order."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[Any]
    lengths_N: NDArray[np.int64]
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Per token, such as the sampler's log-probabilities."""
    pin_memory: bool = True
    """Copy micro-batches to a CUDA device from pinned memory."""

    def __len__(self) -> int:
        return len(self.lengths_N)

    @cached_property
    def starts_N(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths_N) - self.lengths_N

    @cached_property
    def target_mask(self) -> NDArray[np.bool_]:
        """Tokens in the loss. The first token of a sequence never is: nothing predicts it."""
        target_mask = self.loss_mask.astype(bool)
        target_mask[self.starts_N[self.lengths_N > 0]] = False
        return target_mask

    @cached_property
    def loss_tokens_N(self) -> NDArray[np.int64]:
        """Number of tokens in the loss, per sequence."""
        return self.sums(self.target_mask).astype(np.int64)

    @cached_property
    def input_lengths_N(self) -> NDArray[np.int64]:
        """Number of input tokens per sequence: those before the last token in the loss."""
        place = np.where(self.target_mask, self.positions, 0)
        return np.array([place[s : s + n].max(initial=0) for s, n in self._spans()], dtype=np.int64)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """The position of each token in its sequence."""
        return np.arange(len(self.token_ids)) - np.repeat(self.starts_N, self.lengths_N)

    def first_split(self) -> tuple[list[int], list[int]]:
        """The token ids of the first sequence, before its first target token and from there on."""
        ids, targets = self.token_ids[: self.lengths_N[0]], self.target_mask[: self.lengths_N[0]]
        start = int(targets.argmax()) if targets.any() else len(ids)
        return ids[:start].tolist(), ids[start:].tolist()

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values per token, summed over each sequence."""
        return np.array([values[s : s + n].sum() for s, n in self._spans()])

    def _spans(self) -> list[tuple[int, int]]:
        return list(zip(self.starts_N.tolist(), self.lengths_N.tolist(), strict=True))

    def micro_batch(self, rows: Sequence[int] | NDArray[np.int64], device: torch.device, pad_to: int = 0) -> MicroBatch:
        """Of these sequences, sorted by length, since neighbours of equal length are computed together. Padding
        sequences without predictions fill it up to `pad_to` tokens."""
        rows_N = np.asarray(rows, dtype=np.int64)
        rows_N = rows_N[np.argsort(self.input_lengths_N[rows_N], kind="stable")]
        input_lengths_N = self.input_lengths_N[rows_N]
        offsets_N = np.cumsum(input_lengths_N) - input_lengths_N
        positions_T = np.arange(int(input_lengths_N.sum())) - np.repeat(offsets_N, input_lengths_N)
        tokens_T = np.repeat(self.starts_N[rows_N], input_lengths_N) + positions_T
        predicts_P = np.flatnonzero(self.target_mask[tokens_T + 1])
        tokens_P = tokens_T[predicts_P] + 1

        def tensor(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return to_device(torch.from_numpy(np.ascontiguousarray(values)).to(dtype), device, self.pin_memory)

        lengths = input_lengths_N.tolist()
        padding = _padding_lengths(pad_to - len(tokens_T), max(lengths, default=1))
        padding_positions = (
            np.concatenate([np.arange(length) for length in padding]) if padding else np.zeros(0, np.int64)
        )
        return MicroBatch(
            input_ids_T=tensor(np.concatenate([self.token_ids[tokens_T], 0 * padding_positions]), torch.int64),
            position_ids_T=tensor(np.concatenate([positions_T, padding_positions]), torch.int64),
            length_groups=group_by_length(lengths + padding),
            cu_seqlens=tensor(np.cumsum([0, *lengths, *padding]), torch.int32),
            predicts_P=tensor(predicts_P, torch.int64),
            targets_P=tensor(self.token_ids[tokens_P], torch.int64),
            loss_tokens_N=tuple(self.loss_tokens_N[rows_N].tolist()),
            target_cu_seqlens=tensor(np.cumsum([0, *self.loss_tokens_N[rows_N]]), torch.int64),
            fields={name: tensor(values[tokens_P], torch.float32) for name, values in self.fields.items()},
            rows_N=rows_N,
            tokens_P=tokens_P,
        )

    def scatter(self, micros: Sequence[MicroBatch], values: Sequence[Tensor]) -> NDArray[np.float32]:
        """Values of target tokens as an array over all tokens; 0 elsewhere."""
        out = np.zeros(len(self.token_ids), dtype=np.float32)
        if values:
            places = np.concatenate([micro.tokens_P for micro in micros])
            out[places] = torch.cat([value.detach().float() for value in values]).cpu().numpy()
        return out


def to_device(host: Tensor, device: torch.device, pin_memory: bool = True) -> Tensor:
    """Without waiting for kernels on the device, if `pin_memory`."""
    if device.type == "cuda" and pin_memory:
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def concatenate(
    parts: Sequence[Mapping[str, NDArray[Any]]], fields: Sequence[str], pin_memory: bool = True
) -> Sequences:
    """Of several groups of arrays `token_ids`, `loss_mask`, `lengths` and `fields`."""

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([part[name] for part in parts])

    lengths_N = all_of("lengths").astype(np.int64)
    values = {name: all_of(name) for name in fields}
    return Sequences(all_of("token_ids"), all_of("loss_mask"), lengths_N, values, pin_memory)


def _padding_lengths(num_tokens: int, longest: int) -> list[int]:
    """Lengths of padding sequences. At most `longest`, since a model may limit the length, and short, so that their
    attention is cheap."""
    length = min(longest, MAX_PADDING_SEQUENCE)
    count, rest = divmod(max(0, num_tokens), length)
    return [length] * count + [rest] * (rest > 0)


def dummy_micro_batch(device: torch.device) -> MicroBatch:
    """The smallest possible micro-batch, for a rank that has fewer than others."""
    sequences = Sequences(np.zeros(2, np.int32), np.ones(2, np.uint8), np.array([2]))
    return sequences.micro_batch([0], device)
