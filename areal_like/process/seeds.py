"""Derives the seed of each named random stream from the run's seed."""

import xxhash


def derive_seed(seed: int, *names: str | int) -> int:
    """63 bits, the same on every machine."""
    text = "/".join([str(seed), *(str(name) for name in names)])
    return xxhash.xxh3_64_intdigest(text.encode()) >> 1
