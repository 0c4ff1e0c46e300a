"""Seconds and memory of work on a device."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch

from tests.gpu.models import free_memory


class Measured(NamedTuple):
    """`first_s` is the first time, with compilation; `peak_gb` the memory above what was held before, None without a
    GPU."""

    seconds: float
    first_s: float
    peak_gb: float | None


def measured(work: Callable[[], object], warm_up: int = 2, counted: int = 5) -> Measured:
    """The median over `counted` repetitions, each to the end of its kernels. Without a GPU the program is only tried:
    once."""
    free_memory()
    if not torch.cuda.is_available():
        warm_up, counted = 0, 1
    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    seconds = []
    for _ in range(warm_up + counted):
        began = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - began)
    peak = (torch.cuda.max_memory_allocated() - held) / 1e9 if torch.cuda.is_available() else None
    return Measured(median(seconds[warm_up:]), seconds[0], peak)


def wait() -> None:
    """Until the device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
