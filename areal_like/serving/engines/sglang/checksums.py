"""Compares SGLang's /weights_checker with the published tensors. SGLang has its own names, and the hash in here: the
module that starts it replaces SGLang's own, SHA-256, which takes several times longer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.serving.engines.base import Verification
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.hashes import hash_of

Bytes = NDArray[np.uint8]

FUSED = (
    (("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    (("gate_proj", "up_proj"), "gate_up_proj"),
)
"""Checkpoint tensors that SGLang's models concatenate by rows, in this order."""
PADDED = ("embed_tokens.weight", "lm_head.weight")
VOCABULARY_MULTIPLE = 64
"""A vocabulary is padded with rows of zeros to a multiple of this."""
PREFIX = "xxh3-"
"""Begins each checksum, as SGLang's own look alike."""


class FusedTensor(NamedTuple):
    """A tensor in SGLang: the published tensors in it, and the checksums that it may have."""

    parts: tuple[str, ...]
    checksums: frozenset[str]


def checksum(dtype: str, shape: Sequence[int], *contents: Any) -> str:
    """Of a tensor in main memory, given as one or several consecutive parts."""
    return PREFIX + hash_of(dtype, tuple(shape), *contents)


def fused_tensors(infos: Sequence[TensorInfo], contents: Mapping[str, Bytes]) -> dict[str, FusedTensor]:
    """Every tensor that SGLang should have after it loaded these. Those that it has as they were published have the
    published hash, and their contents are not read."""
    by_name = {info.name: info for info in infos}
    tensors = {}
    for name, info in by_name.items():
        target, parts = _fused_name(name)
        if target in tensors or any(part not in by_name for part in parts):
            continue
        checksums = {PREFIX + info.hash}
        missing = -info.shape[0] % VOCABULARY_MULTIPLE if name.endswith(PADDED) else 0
        if missing:
            padding = np.zeros(missing * (info.nbytes // info.shape[0]), np.uint8)
            shape = info.shape[0] + missing, *info.shape[1:]
            checksums.add(checksum(info.dtype, shape, contents[name].data, padding.data))
        elif len(parts) > 1:
            shape = sum(by_name[part].shape[0] for part in parts), *info.shape[1:]
            checksums = {checksum(info.dtype, shape, *(contents[part].data for part in parts))}
        tensors[target] = FusedTensor(parts, frozenset(checksums))
    return tensors


def _fused_name(name: str) -> tuple[str, tuple[str, ...]]:
    for parts, target in FUSED:
        for part in parts:
            before, separator, after = name.partition(f".{part}.")
            if separator:
                return f"{before}.{target}.{after}", tuple(f"{before}.{each}.{after}" for each in parts)
    return name, (name,)


def compare(
    expected: Mapping[str, FusedTensor], ranks: Sequence[Mapping[str, str]], infos: Sequence[TensorInfo]
) -> Verification:
    """With several ranks each may have a part of a tensor, so that a different hash proves nothing: such tensors are
    uncovered."""
    check = Verification()
    published = {info.name: info.hash for info in infos}
    served: dict[str, set[str]] = {}
    for rank in ranks:
        for name, each in rank.items():
            served.setdefault(name.replace(".base_layer.", "."), set()).add(each)
    for target, (parts, allowed) in expected.items():
        checksums = served.get(target)
        if checksums is not None and checksums <= allowed:
            check.hashes |= {name: published[name] for name in parts}
        elif checksums is not None and len(ranks) == 1:
            difference = f"the served {target} (checksum {min(checksums)}) is not the published one ({min(allowed)})"
            check.wrong |= dict.fromkeys(parts, difference)
    check.uncovered = [name for name in published if name not in check.hashes and name not in check.wrong]
    return check
