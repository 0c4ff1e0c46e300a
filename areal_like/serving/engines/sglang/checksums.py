"""Compares SGLang's /weights_checker with the published tensors: SGLang has its own names, and our hash (the module that
starts it replaces SGLang's, SHA-256, which takes several times longer)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from areal_like.serving.engines.base import Verification
from areal_like.weights.buckets import TensorInfo

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


def checksum(parts: Iterable[Bytes]) -> str:
    """Of a tensor in main memory, given as consecutive parts."""
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part.data)
    return PREFIX + digest.hexdigest()


class FusedTensor(NamedTuple):
    """A tensor in SGLang: the published tensors in it, and the hashes that it may have."""

    parts: tuple[str, ...]
    hashes: frozenset[str]


def fused_tensors(infos: Sequence[TensorInfo], contents: Mapping[str, Bytes]) -> dict[str, FusedTensor]:
    """Every tensor that SGLang should have after it loaded these."""
    by_name = {info.name: info for info in infos}
    tensors = {}
    for name in by_name:
        target, parts = _fused_name(name)
        if target in tensors or any(part not in by_name for part in parts):
            continue
        hashes = {checksum(contents[part] for part in parts)}
        if name.endswith(PADDED) and (missing := -by_name[name].shape[0] % VOCABULARY_MULTIPLE):
            padding = np.zeros(missing * (by_name[name].nbytes // by_name[name].shape[0]), np.uint8)
            hashes.add(checksum((contents[name], padding)))
        tensors[target] = FusedTensor(parts, frozenset(hashes))
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
        for name, checksum in rank.items():
            served.setdefault(name.replace(".base_layer.", "."), set()).add(checksum)
    for target, (parts, hashes) in expected.items():
        checksums = served.get(target)
        if checksums is not None and checksums <= hashes:
            check.hashes |= {name: published[name] for name in parts}
        elif checksums is not None and len(ranks) == 1:
            difference = f"the served {target} (checksum {min(checksums)}) is not the published one ({min(hashes)})"
            check.wrong |= dict.fromkeys(parts, difference)
    check.uncovered = [name for name in published if name not in check.hashes and name not in check.wrong]
    return check
