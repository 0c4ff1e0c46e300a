"""The probe: what a precision explains, and what the noise of the first weights allows later ones."""

import numpy as np
import pytest

from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import (
    ALLOWED,
    ROUNDING,
    Difference,
    Noise,
    Probe,
    check_probe,
    difference,
    dump_probe,
    load_probe,
    precision,
    tolerance,
)

TEXT = Probe(list(range(65)), [-1.0] * 64)


def apart(mean: float, worst: float | None = None) -> list[float]:
    """Answers to TEXT that differ so much on average, and in one token."""
    worst = mean if worst is None else worst
    rest = (64 * mean - worst) / 63
    return [-1.0 - worst, *[-1.0 + (-1) ** at * rest for at in range(63)]]


@pytest.mark.parametrize(("dtype", "within", "beyond"), [("float32", 9e-4, 2e-3), ("bfloat16", 0.19, 0.21)])
def test_first_weights_may_differ_by_what_their_precision_explains(dtype, within, beyond) -> None:
    probe = Probe([7, 8, 9], [-1.0, -2.0])
    found = check_probe(probe, [-1.0 + within, -2.0 - within], dtype)
    assert found == pytest.approx((within, within))
    with pytest.raises(BadWeights, match=rf"token 2 \(id 9\) the trainer has -2 and the server -2\..*; {dtype} allows"):
        check_probe(probe, [-1.0 - beyond, -2.0 - 1.01 * beyond], dtype)


@pytest.mark.parametrize("noise", [0.086, 0.03])
def test_later_weights_may_differ_by_four_times_the_noise_of_the_first(noise) -> None:
    """0.086 is that of SmolLM2-135M for random tokens, which a fixed limit of 0.05 refuses."""
    probe = TEXT._replace(noise=Noise(40 * noise, noise))
    check_probe(probe, apart(3.9 * noise, 20 * noise), "bfloat16")
    words = rf"with the run's first weights they differed by {noise:g} on average, .* bfloat16 allows a "
    with pytest.raises(BadWeights, match=words):
        check_probe(probe, apart(4.1 * noise), "bfloat16")
    with pytest.raises(BadWeights, match=r"token 1 \(id 1\)"):
        check_probe(probe, apart(2.9 * noise, 161 * noise), "bfloat16")


def test_a_small_noise_leaves_no_more_room_than_rounding() -> None:
    """Two exchanged matrices of a model whose servers hardly differ."""
    probe = TEXT._replace(noise=Noise(0.008, 0.002))
    check_probe(probe, apart(0.015, 0.24), "bfloat16")
    for wrong in (apart(0.03), apart(0.01, 0.26)):
        with pytest.raises(BadWeights, match=r"allows a difference of 0\.25 \(0\.0156 on average"):
            check_probe(probe, wrong, "bfloat16")


def test_a_lucky_largest_difference_at_first_is_not_the_measure() -> None:
    """SmolLM2-135M in bfloat16 on one text: 0.18 with one version, 0.62 with the next."""
    probe = TEXT._replace(noise=Noise(0.12, 0.04))
    check_probe(probe, apart(0.05, 0.62), "bfloat16")
    with pytest.raises(BadWeights, match=r"allows a difference of 2\.56 \(0\.16 on average"):
        check_probe(probe, apart(0.05, 2.6), "bfloat16")


def test_one_token_may_differ_by_four_times_the_largest_difference_of_many() -> None:
    """The same noise, after 16 versions with differences up to 0.4."""
    noise = Noise(0.12, 0.04, 63)
    for _ in range(15):
        assert tolerance("bfloat16", noise).worst == pytest.approx(2.56)
        noise = noise.widened(Difference(0.4, 0.05), 63)
    assert noise == (0.4, 0.04, 1008)
    assert tolerance("bfloat16", noise) == pytest.approx((1.6, 0.16))
    check_probe(TEXT._replace(noise=noise), apart(0.05, 1.5), "bfloat16")
    with pytest.raises(BadWeights, match=r"in a token by 0\.4 at most until now, .* of 1\.6 \(0\.16 on average"):
        check_probe(TEXT._replace(noise=noise), apart(0.05, 1.7), "bfloat16")


def test_right_answers_are_hardly_ever_refused_for_one_token() -> None:
    """Differences with the spread of those that were measured: the largest of 63 is 3 to 12 times their mean. At most
    one of 200 runs of 100 versions is refused, though all differences are drawn anew for each version."""
    gaps = 0.02 * np.exp(0.85 * np.random.default_rng(1).standard_normal((200, 100, 63)))
    worst, mean = gaps.max(-1), gaps.mean(-1)
    assert np.quantile(worst / mean, 0.02) > 2.8 and np.quantile(worst / mean, 0.98) < 12
    refused = 0
    for worst_of, mean_of in zip(worst.tolist(), mean.tolist(), strict=True):
        noise, limits = Noise(worst_of[0], mean_of[0], 63), []
        for found in map(Difference, worst_of, mean_of):
            limits.append(tolerance("bfloat16", noise).worst)
            noise = noise.widened(found, 63)
        refused += any(each > limit for each, limit in zip(worst_of, limits, strict=True))
    assert refused <= 1


@pytest.mark.parametrize("dtype", ROUNDING)
def test_exact_agreement_at_first_leaves_room_for_rounding(dtype) -> None:
    least = tolerance(dtype, Noise(0.0, 0.0))
    assert least == ROUNDING[dtype].accepted
    assert least.mean <= ALLOWED * ROUNDING[dtype].believed.mean and least.worst <= ROUNDING[dtype].believed.worst


def test_the_coarser_side_decides_and_float32_is_coarser_on_a_gpu() -> None:
    """Kernels there may multiply in TF32."""
    assert precision("float32", on_gpu=True) == "tf32" and precision("float32", on_gpu=False) == "float32"
    assert precision("bfloat16", on_gpu=True) == "bfloat16"
    for mine, theirs in (("tf32", "float32"), ("float32", "tf32")):
        check_probe(TEXT._replace(dtype=mine), apart(0.02), theirs)
        with pytest.raises(BadWeights, match="tf32 allows"):
            check_probe(TEXT._replace(dtype=mine), apart(0.03), theirs)
    with pytest.raises(BadWeights, match="float32 allows"):
        check_probe(TEXT._replace(dtype="float32"), apart(0.02), "float32")
    check_probe(TEXT._replace(dtype="bfloat16"), apart(0.1), "float32")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_probe_that_is_not_finite_is_refused(value) -> None:
    for noise in (None, Noise(1.0, 0.1)):
        with pytest.raises(BadWeights, match=r"trainer and server compute different models: .* token 1 "):
            check_probe(Probe([7, 8, 9], [-1.0, -2.0], noise=noise), [value, -2.5], "bfloat16")
    assert difference([-1.0], [value]).mean != difference([-1.0], [value]).mean
    with pytest.raises(BadWeights, match="the probe has 2 log-probabilities"):
        check_probe(Probe([7, 8, 9], [-1.0, -2.0]), [-1.0], "float32")


def test_a_probe_survives_its_way_to_the_servers() -> None:
    for probe in (TEXT, TEXT._replace(dtype="tf32", noise=Noise(0.5, 0.25))):
        assert load_probe(dump_probe(probe)) == probe
    with pytest.raises(TypeError, match="dtype 'int8' is not one of"):
        load_probe({**dump_probe(TEXT), "dtype": "int8"})
    for name, value in (("logprobs", [None]), ("logprobs", 3), ("noise", ["a", "b"]), ("token_ids", {})):
        with pytest.raises(TypeError, match=f"{name} is not a list of numbers"):
            load_probe({**dump_probe(TEXT), name: value})
