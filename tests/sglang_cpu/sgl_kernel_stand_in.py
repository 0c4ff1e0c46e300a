"""A stand-in for `sgl_kernel`, of which PyPI has no build without CUDA: the one function that SGLang's path on a CPU
calls, in plain torch. Every other name says that it is missing when it is called."""

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

MODULES = ("sgl_kernel", "sgl_kernel.mamba", "sgl_kernel.kvcacheio")


class _Missing(types.ModuleType):
    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for a machine without a GPU")

        return missing


def install() -> None:
    for name in MODULES:
        module = _Missing(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module)["__version__"] = "0"
        sys.modules[name] = module
    vars(sys.modules["sgl_kernel"])[assign_req_to_token_pool_cpu.__name__] = assign_req_to_token_pool_cpu


def assign_req_to_token_pool_cpu(
    rows: Any, req_to_token: Any, start_offset: Any, end_offset: Any, out_cache_loc: Any, *_: Any
) -> None:
    """Writes the cache places of new tokens into the rows of their requests."""
    at = 0
    for row, start, end in zip(rows.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        places = out_cache_loc[at : at + end - start]
        req_to_token[row, start:end] = places.to(req_to_token.dtype)
        at += end - start
