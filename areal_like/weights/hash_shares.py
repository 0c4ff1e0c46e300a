"""Divides the hashing of one publication among processes that read the same files."""

from collections.abc import Sequence

from areal_like.weights.buckets import TensorInfo


def hash_share(infos: Sequence[TensorInfo], number: int, count: int) -> frozenset[str]:
    """The names of the tensors that process `number` of `count` hashes. Every tensor, largest first, goes to the share
    that has the fewest bytes: equal in all processes."""
    shares: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for info in sorted(infos, key=lambda info: (-info.nbytes, info.name)):
        place = sizes.index(min(sizes))
        shares[place].append(info.name)
        sizes[place] += info.nbytes
    return frozenset(shares[number])
