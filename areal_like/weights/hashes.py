"""Hashes tensors given as bytes, and compares the hashes of published and served tensors. Imports no torch."""

from collections.abc import Mapping
from typing import Any

import xxhash

from areal_like.weights.errors import BadWeights, count_by_layer, with_layer


def hash_of(dtype: str, shape: tuple[int, ...], *contents: Any) -> str:
    """xxh3 over type, shape and content (contiguous buffers, one after another), as 16 hex digits."""
    digest = xxhash.xxh3_64(f"{dtype}{list(shape)}".encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def compare(published: Mapping[str, str], served: Mapping[str, str], version: int) -> None:
    """Refuses served weights whose hashes are not the published ones."""
    problems = []
    if missing := [name for name in published if name not in served]:
        problems.append(count_by_layer(missing, "missing"))
    if unexpected := [name for name in served if name not in published]:
        problems.append(count_by_layer(unexpected, "not among those published"))
    changed = [name for name in published if name in served and served[name] != published[name]]
    if changed:
        first = changed[0]
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        problems.append(
            f"{with_layer(first)}{more}: served with hash {served[first]}, published with {published[first]}"
        )
    if problems:
        raise BadWeights(f"version {version} of the weights: {'; '.join(problems)}")
