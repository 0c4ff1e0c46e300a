"""The keys of an engine that decide the numbers it computes with."""

from collections.abc import Callable, Iterator
from typing import Any

from areal_like.config.engines import engine_keys

FLAGS = "extra_args"
"""The key of an engine with flags of its own."""
PRECISION_FLAGS = ("quantization", "kv_cache_dtype")


def precision_values(engine: str, value_of: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """Those that are set. `value_of`: the value of a dotted key, None where there is none."""
    keys = engine_keys(engine)
    for key in (keys.dtype_key, keys.kv_dtype_key):
        if key and (value := value_of(key)) is not None:
            yield key, value
    for flag, value in (value_of(f"{engine}.{FLAGS}") or {}).items():
        if flag.replace("-", "_") in PRECISION_FLAGS:
            yield f"{engine}.{FLAGS}.{flag}", value
