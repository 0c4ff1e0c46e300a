"""Checksums of tensors on a GPU: one definition for every device, few operators, one copy to the host."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from areal_like.weights import device_checksum
from areal_like.weights.device_checksum import checksum_values, checksums

MASK = (1 << 64) - 1
ROW = device_checksum.ROW_WORDS


def mixed(value: int) -> int:
    value &= MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def slow_checksum(content: bytes) -> str:
    """By the description alone, with Python's integers."""
    golden, total = 0x9E3779B97F4A7C15, 0
    padded = content + b"\0" * (-len(content) % 4)
    words = [int.from_bytes(padded[at : at + 4], "little", signed=True) for at in range(0, len(padded), 4)]
    for row, begin in enumerate(range(0, len(words), ROW)):
        part = words[begin : begin + ROW]
        total += mixed(sum(word * (mixed(golden * (k + 1)) | 1) for k, word in enumerate(part)) + (row + 1) * golden)
    return f"{mixed(len(content) * golden + total):016x}"


def random_bytes(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def checksum(tensor: torch.Tensor) -> str:
    return checksums([("one", tensor)])["one"]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 4 * ROW - 1, 4 * ROW, 4 * ROW + 2, 12 * ROW + 404])
def test_a_checksum_is_what_its_description_says(size: int, monkeypatch) -> None:
    monkeypatch.setattr(device_checksum, "ROWS_AT_ONCE", 2)
    content = random_bytes(size)
    assert checksum(content) == slow_checksum(content.numpy().tobytes())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_type_and_memory_layout_do_not_change_a_checksum(dtype: torch.dtype) -> None:
    tensor = random_bytes(16 * ROW).view(torch.int8).gt(0).to(dtype).view(8, -1)
    want = slow_checksum(tensor.view(torch.uint8).numpy().tobytes())
    assert checksum(tensor) == want
    assert checksum(tensor.t().contiguous().t()) == want
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), tensor.view(torch.uint8).reshape(-1)])
    assert checksum(shifted[1:]) == want


def test_a_checksum_does_not_depend_on_the_other_tensors() -> None:
    tensors = {str(size): random_bytes(size, size) for size in (40_000, 0, 7, 16 * ROW, 16)}
    assert checksums(tensors.items()) == {name: checksum(tensor) for name, tensor in tensors.items()}
    assert checksums([]) == {}


def swap(content: torch.Tensor, first: int, second: int, width: int) -> torch.Tensor:
    changed, (first, second) = content.clone(), (first * width, second * width)
    changed[first : first + width] = content[second : second + width]
    changed[second : second + width] = content[first : first + width]
    return changed


CHANGES: dict[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "a flipped bit": lambda content, a, b: content.index_fill(0, torch.tensor(a), int(content[a]) ^ 1 << b % 8),
    "swapped bytes": lambda content, a, b: swap(content, a, b, 1),
    "swapped words": lambda content, a, b: swap(content, a // 4, b // 4, 4),
    "swapped rows": lambda content, a, b: swap(content, a // 4096, b // 4096, 4096),
    "truncated": lambda content, a, b: content[: max(a, b)],
    "zeros at the end": lambda content, a, b: torch.cat([content, content.new_zeros(1 + a % 9)]),
    "rotated": lambda content, a, b: content.roll(4 * (1 + a % 100)),
}


@pytest.mark.parametrize("change", CHANGES)
@given(a=st.integers(0, 8 * 4 * ROW - 1), b=st.integers(0, 8 * 4 * ROW - 1))
def test_every_change_of_the_content_changes_the_checksum(change: str, a: int, b: int) -> None:
    content = random_bytes(8 * 4 * ROW)
    changed = CHANGES[change](content, a, b)
    assert (checksum(changed) == checksum(content)) == torch.equal(changed, content)


@given(first=st.integers(0, 9999), second=st.integers(0, 9999))
def test_two_flipped_signs_change_the_checksum(first: int, second: int) -> None:
    """The highest bits of words must not cancel each other."""
    content = torch.ones(10_000, dtype=torch.bfloat16)
    changed = content.clone()
    changed[[first, second]] = -1
    assert checksum(changed) != checksum(content)


class Operators(TorchDispatchMode):
    """Names of operators, and the largest tensor that one of them made, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.largest = max(self.largest, result.nbytes)
        return result


def test_what_a_checksum_needs_comes_to_the_device_without_a_wait(monkeypatch) -> None:
    pinned: list[int] = []

    def pin(numbers: torch.Tensor) -> torch.Tensor:
        pinned.append(numbers.numel())
        return numbers

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    tensors = [torch.empty(64, ROW, device="meta") for _ in range(3)]
    checksum_values(tensors)
    pinned.clear()
    with Arrivals() as arrivals:
        checksum_values(tensors)
    assert arrivals.non_blocking == [True] and pinned == [6], "sizes alone: the multipliers are kept there"


class Arrivals(TorchDispatchMode):
    """Copies to the device `meta`."""

    def __init__(self) -> None:
        super().__init__()
        self.non_blocking: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
            self.non_blocking.append(options.get("non_blocking", False))
        return func(*args, **options)


def test_a_checksum_takes_few_operators_and_no_value_to_the_host(monkeypatch) -> None:
    monkeypatch.setattr(device_checksum, "ROWS_AT_ONCE", 16)
    tensors = [torch.zeros(64, ROW) for _ in range(3)]
    checksum_values(tensors[:1])
    with Operators() as operators:
        checksum_values(tensors)
    assert not {"_local_scalar_dense", "item", "nonzero"} & set(operators.names)
    assert operators.names.count("sum") == 3 * 4 and operators.names.count("mul") == 3 * 4 + 6
    assert operators.largest <= 16 * ROW * 8
