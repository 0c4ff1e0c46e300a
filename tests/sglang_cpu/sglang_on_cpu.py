"""Makes SGLang importable and runnable where there is no CUDA. Stands in the environment of `make sglang-cpu`, whose
`.pth` file calls `watch` when an interpreter starts there; SGLang's own processes are started anew and get it too."""

import functools
import importlib
import importlib.abc
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NEEDS_IT = ("sglang", "torchvision")
TAKE_PINNED = ("tensor", "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "arange")


class _BeforeSGLang(importlib.abc.MetaPathFinder):
    """Acts on the first import of what needs it, so that other programs of the environment start as fast as ever."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in NEEDS_IT:
            sys.meta_path.remove(self)
            _apply()


def watch() -> None:
    """Once, though an interpreter reads a `.pth` file twice where lib64 is a link to lib."""
    watches = any(isinstance(finder, _BeforeSGLang) for finder in sys.meta_path)
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1" and not watches:
        sys.meta_path.insert(0, _BeforeSGLang())


def _apply() -> None:
    import torch

    _declare_torchvision(torch)
    importlib.import_module("sgl_kernel_stand_in").install()
    if not torch.cuda.is_available():
        _forget_pinned_memory(torch)
        torch.cuda.synchronize = lambda *_, **__: None  # /weights_checker waits for a GPU even without one


def _declare_torchvision(torch: Any) -> None:
    """PyPI's torchvision is linked with CUDA; without its library, its own import fails on operators that nobody
    declared."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    _KEPT.append(library)  # what it declares goes when it goes
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_KEPT: list[Any] = []


def _forget_pinned_memory(torch: Any) -> None:
    """SGLang's adapters ask for memory that a GPU could read."""
    import torch.utils._device as device

    device._device_constructors()  # remembers the originals: `with torch.device("meta")` needs them
    for name in TAKE_PINNED:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_, **__: self


def _without_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return made
