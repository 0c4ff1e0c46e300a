"""What SGLang's /weights_checker says of tensors that were published: names as SGLang holds them, and its own hash."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_like.serving.external.base import Verification
from areal_like.weights.buckets import TensorInfo

Bytes = NDArray[np.uint8]

FUSED = (
    (("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    (("gate_proj", "up_proj"), "gate_up_proj"),
)
"""Tensors of a checkpoint that SGLang's models hold as one, first rows first."""
PADDED = ("embed_tokens.weight", "lm_head.weight")
VOCABULARY_MULTIPLE = 64
"""A vocabulary is filled up with rows of zeros to a multiple of this."""


class FusedTensor(NamedTuple):
    """A tensor in SGLang: the published ones that it is made of, and the hashes that it may then have."""

    made_of: tuple[str, ...]
    hashes: frozenset[str]


def fused_tensors(
    infos: Sequence[TensorInfo], contents: Mapping[str, Bytes], digest: Callable[[Iterator[Bytes]], str]
) -> dict[str, FusedTensor]:
    """Every tensor that SGLang should hold after loading these."""
    by_name = {info.name: info for info in infos}
    found = {}
    for name in by_name:
        target, parts = _fused_name(name)
        if target in found or any(part not in by_name for part in parts):
            continue
        hashes = {digest(contents[part] for part in parts)}
        if name.endswith(PADDED) and (missing := -by_name[name].shape[0] % VOCABULARY_MULTIPLE):
            filling = np.zeros(missing * (by_name[name].nbytes // by_name[name].shape[0]), np.uint8)
            hashes.add(digest(iter((contents[name], filling))))
        found[target] = FusedTensor(parts, frozenset(hashes))
    return found


def _fused_name(name: str) -> tuple[str, tuple[str, ...]]:
    for parts, target in FUSED:
        for part in parts:
            before, found, after = name.partition(f".{part}.")
            if found:
                return f"{before}.{target}.{after}", tuple(f"{before}.{one}.{after}" for one in parts)
    return name, (name,)


def compare(
    expected: Mapping[str, FusedTensor], ranks: Sequence[Mapping[str, str]], infos: Sequence[TensorInfo]
) -> Verification:
    """What SGLang holds beside what was published. Of several ranks each may hold a part of a tensor, so that another
    hash says nothing: such tensors are uncovered."""
    found = Verification()
    known = {info.name: info.hash for info in infos}
    served: dict[str, set[str]] = {}
    for rank in ranks:
        for name, checksum in rank.items():
            served.setdefault(name.replace(".base_layer.", "."), set()).add(checksum)
    for target, (made_of, hashes) in expected.items():
        said = served.get(target)
        if said is not None and said <= hashes:
            found.hashes |= {name: known[name] for name in made_of}
        elif said is not None and len(ranks) == 1:
            other = f"what is served as {target} (checksum {min(said)}) is not what was published ({min(hashes)})"
            found.wrong |= dict.fromkeys(made_of, other)
    found.uncovered = [name for name in known if name not in found.hashes and name not in found.wrong]
    return found


def digest_on_cpu(parts: Iterator[Bytes]) -> str:
    """SGLang hashes what is in main memory with SHA-256, and keeps 64 bits of it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return digest.digest()[:8].hex()
