"""Divides one publication among processes: to hash the same files, or to keep what was sent."""

from collections.abc import Sequence

from areal_like.weights.buckets import TensorInfo


def hash_shares(infos: Sequence[TensorInfo], count: int) -> list[frozenset[str]]:
    """The names of the tensors of each of `count` processes. Every tensor, largest first, goes to the share that has
    the fewest bytes: equal in all processes."""
    shares: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for info in sorted(infos, key=lambda info: (-info.nbytes, info.name)):
        place = sizes.index(min(sizes))
        shares[place].append(info.name)
        sizes[place] += info.nbytes
    return [frozenset(share) for share in shares]


def hash_share(infos: Sequence[TensorInfo], number: int, count: int) -> frozenset[str]:
    """Of process `number`."""
    return hash_shares(infos, count)[number]
