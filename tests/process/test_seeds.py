"""Each stream of random numbers has a different seed."""

from areal_like.process.seeds import derive_seed


def test_every_stream_has_a_different_seed():
    seeds = {derive_seed(seed, *names) for seed in (1, 2) for names in (("data", 0), ("data", 1), ("sampling", 1))}
    assert len(seeds) == 6
    assert derive_seed(1, "data", 0) == derive_seed(1, "data", 0) < 1 << 63
