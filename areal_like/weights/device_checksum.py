"""Checksums of tensors, computed where the tensors are: hashing tensors of a GPU would copy them to the host.

The value is defined by integers modulo 2^64, so that a CPU and every GPU give the same one. A tensor's bytes are words
of 32 bits, little-endian and signed, the last one filled with zeros. Rows of ROW_WORDS words are multiplied by fixed
odd numbers, one for each place in a row, and summed; each sum is mixed with the number of its row, and the mixed sums
and the number of bytes give the checksum. For two tensors that differ in swapped words, flipped signs or the order of
rows, the chance of the same checksum is about 1 in 2^32 at most.
"""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.weights import device_copies

WORD_BYTES = 4
ROW_WORDS = 4096
ROW_BYTES = WORD_BYTES * ROW_WORDS
ROWS_AT_ONCE = 1024
"""Their products take eight bytes a word."""
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of splitmix64."""


def uses_checksums(device: torch.device) -> bool:
    """Whether tensors there are verified by checksums: on a CPU the hashes of a publication are as fast."""
    return device.type != "cpu"


def checksums(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """By name, as 16 hex digits, of tensors on one device; all values come to the host in one copy."""
    named = dict(tensors)
    texts = checksum_texts(checksum_values(list(named.values()))) if named else []
    return dict(zip(named, texts, strict=True))


def checksum_texts(values: Tensor) -> list[str]:
    """From a GPU the values come in one copy, which is waited for on this stream alone."""
    if device_copies.is_on_gpu(values):
        device, values = values.device, device_copies.start_read_back(values)
        device_copies.wait_for_stream(device)
    return [f"{value & (1 << 64) - 1:016x}" for value in values.tolist()]


def checksum_values(tensors: Sequence[Tensor]) -> Tensor:
    """Of tensors on one device, as an int64 tensor on that device. Nothing is copied to the host, and nothing is waited
    for."""
    device = tensors[0].device
    multipliers = _multipliers_on(device)
    counts = [-(-tensor.nbytes // ROW_BYTES) for tensor in tensors]
    sums_R = torch.empty(sum(counts), dtype=torch.int64, device=device)
    for tensor, sums in zip(tensors, torch.split(sums_R, counts), strict=True):
        _sum_rows(_as_bytes(tensor), multipliers, sums)
    counts_T, nbytes_T = device_copies.sent_to(torch.tensor([counts, [tensor.nbytes for tensor in tensors]]), device)
    numbers_T = torch.arange(len(tensors), device=device)
    tensor_R = torch.repeat_interleave(numbers_T, counts_T, output_size=len(sums_R))
    row_R = torch.arange(len(sums_R), device=device) - (counts_T.cumsum(0) - counts_T)[tensor_R]
    mixed_R = _mix(sums_R + (row_R + 1) * _signed(GOLDEN))
    return _mix(nbytes_T * _signed(GOLDEN) + torch.zeros_like(numbers_T).index_add_(0, tensor_R, mixed_R))


def _as_bytes(tensor: Tensor) -> Tensor:
    """Copied only if it is not contiguous, or not aligned to words."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    is_shifted = flat.device.type == "cpu" and flat.data_ptr() % WORD_BYTES  # mapped from a file
    return flat.clone() if flat.storage_offset() % WORD_BYTES or is_shifted else flat


def _sum_rows(content: Tensor, multipliers: Tensor, sums: Tensor) -> None:
    whole = len(content) // ROW_BYTES
    words = content[: whole * ROW_BYTES].view(torch.int32).view(whole, ROW_WORDS)
    for begin in range(0, whole, ROWS_AT_ONCE):
        end = min(begin + ROWS_AT_ONCE, whole)
        torch.sum(words[begin:end] * multipliers, 1, out=sums[begin:end])
    rest = content[whole * ROW_BYTES :]
    if missing := -len(rest) % WORD_BYTES:
        rest = torch.cat([rest, rest.new_zeros(missing)])
    if len(rest):
        words = rest.view(torch.int32)
        torch.sum(words * multipliers[: len(words)], 0, keepdim=True, out=sums[whole:])


def _mix(values: Tensor) -> Tensor:
    """The finalizer of splitmix64."""
    values = (values ^ _shift(values, 30)) * _signed(FIRST)
    values = (values ^ _shift(values, 27)) * _signed(SECOND)
    return values ^ _shift(values, 31)


def _shift(values: Tensor, bits: int) -> Tensor:
    """To the right, filled with zeros: torch's own shift repeats the sign."""
    return (values >> bits) & ((1 << 64 - bits) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64)


@cache
def _multipliers_on(device: torch.device) -> Tensor:
    """Copied once: this copy is complete when it returns, for all streams."""
    with torch.inference_mode(False):
        return torch.from_numpy(_multipliers()).to(device)


@cache
def _multipliers() -> NDArray[np.int64]:
    """Odd numbers from splitmix64."""
    numbers = np.arange(1, ROW_WORDS + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(FIRST)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(SECOND)
    return ((numbers ^ (numbers >> np.uint64(31))) | np.uint64(1)).view(np.int64)
