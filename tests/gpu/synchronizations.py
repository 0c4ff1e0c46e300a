"""Counts operations that wait for the device: each reads a value or a size that the device computes."""

import warnings
from collections import Counter
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
}
COPIES = {"aten::_to_copy", "aten::copy_"}
"""Between a GPU and the host's memory they wait, unless that is pinned and they are asked not to."""


class Synchronizations(TorchDispatchMode):
    """`counts` by operation. On a GPU also those that CUDA itself reports, as `reported by CUDA`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        waits = name in WAITING or (name in COPIES and copy_waits(name, args, kwargs or {}, result))
        if waits or (name == "aten::repeat_interleave" and (kwargs or {}).get("output_size") is None):
            self.counts[name] += 1
        return result

    def __enter__(self) -> Self:
        super().__enter__()
        self._warnings = warnings.catch_warnings(record=True)
        self._caught = self._warnings.__enter__()
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *fault: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")
            self.counts["reported by CUDA"] = sum("synchroniz" in str(each.message) for each in self._caught or ())
        self._warnings.__exit__(*fault)
        super().__exit__(*fault)

    @property
    def total(self) -> int:
        return max(self.counts["reported by CUDA"], self.counts.total() - self.counts["reported by CUDA"])


def copy_waits(name: str, args: Any, kwargs: Any, result: Any) -> bool:
    into, source = (args[0], args[1]) if name == "aten::copy_" else (result, args[0])
    if into.is_cuda == source.is_cuda:
        return False
    asks_not_to = bool(kwargs.get("non_blocking") or (name == "aten::copy_" and len(args) > 2 and args[2]))
    return not (asks_not_to and (source if into.is_cuda else into).is_pinned())
