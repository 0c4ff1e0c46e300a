"""The probe: what a precision explains, and what the noise of the first weights allows later ones."""

import numpy as np
import pytest

from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import (
    ALLOWED,
    ROUNDING,
    Difference,
    Probe,
    check_probe,
    difference,
    dump_probe,
    load_probe,
    precision,
    tolerance,
)

TEXT = Probe(list(range(65)), [-1.0] * 64)


def apart(mean: float, few: float | None = None, count: int = 7) -> list[float]:
    """Answers to TEXT that differ so much on average, and in the first tokens."""
    few = mean if few is None else few
    rest = (64 * mean - count * few) / (64 - count)
    return [-1.0 - few] * count + [-1.0 + (-1) ** at * rest for at in range(64 - count)]


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
    probe = TEXT._replace(noise=Difference(noise, 2 * noise))
    assert tolerance("bfloat16", probe.noise) == pytest.approx((4 * noise, 8 * noise))
    check_probe(probe, apart(3.9 * noise), "bfloat16")
    words = rf"with the run's first weights they differed by {noise:g} on average .* bfloat16 allows a "
    with pytest.raises(BadWeights, match=words):
        check_probe(probe, apart(4.1 * noise), "bfloat16")


def test_a_fault_in_one_of_ten_tokens_is_found() -> None:
    """Such as those at the end of a sequence: the mean over all tokens would hide it."""
    probe = TEXT._replace(noise=Difference(0.04, 0.06))
    check_probe(probe, apart(0.05, 0.23), "bfloat16")
    words = (
        r"token 1 \(id 1\) .* a difference of 0\.16 on average \(0\.24 at one of ten tokens\), and the probe has 0\.05 "
    )
    with pytest.raises(BadWeights, match=words):
        check_probe(probe, apart(0.05, 0.25), "bfloat16")


def test_a_single_token_may_differ_by_chance() -> None:
    """SmolLM2-135M in bfloat16 on one text: 0.18 with one version, 0.62 with the next."""
    probe = TEXT._replace(noise=Difference(0.04, 0.08))
    check_probe(probe, apart(0.05, 0.62, count=1), "bfloat16")
    with pytest.raises(BadWeights, match=r"0\.171 on average"):
        check_probe(probe, apart(0.171, 9.0, count=1), "bfloat16")


def test_a_small_noise_leaves_no_more_room_than_rounding() -> None:
    """Two exchanged matrices of a model whose servers hardly differ."""
    probe = TEXT._replace(noise=Difference(0.002, 0.003))
    check_probe(probe, apart(0.015, 0.12), "bfloat16")
    for wrong in (apart(0.03), apart(0.015, 0.13)):
        with pytest.raises(
            BadWeights, match=r"allows a difference of 0\.0156 on average \(0\.125 at one of ten tokens\)"
        ):
            check_probe(probe, wrong, "bfloat16")


def test_right_answers_are_not_refused_by_chance() -> None:
    """Differences with the spread of those that were measured: the largest of 63 is 3 to 12 times their mean. No run is
    refused, though all differences are drawn anew for each version."""
    gaps = np.sort(0.02 * np.exp(0.85 * np.random.default_rng(1).standard_normal((300, 300, 63))))
    mean, p90, worst = gaps.mean(-1), gaps[..., 56], gaps[..., -1]
    assert p90[0, 0] == difference([0.0] * 63, gaps[0, 0].tolist()).p90
    assert np.quantile(worst / mean, 0.02) > 2.8 and np.quantile(worst / mean, 0.98) < 12
    for found in (mean, p90):
        assert (found.max(1) < ALLOWED * found[:, 0]).all()
    assert (worst.max(1) > ALLOWED * worst[:, 0]).mean() > 0.1, "the largest is no measure"


@pytest.mark.parametrize("dtype", ROUNDING)
def test_exact_agreement_at_first_leaves_room_for_rounding(dtype) -> None:
    least, believed = tolerance(dtype, Difference(0.0, 0.0)), ROUNDING[dtype].believed
    assert least == ROUNDING[dtype].accepted
    assert least.mean <= believed.mean and least.p90 <= believed.p90


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
    for noise in (None, Difference(1.0, 1.0)):
        with pytest.raises(BadWeights, match=r"trainer and server compute different models: .* token 1 "):
            check_probe(Probe([7, 8, 9], [-1.0, -2.0], noise=noise), [value, -2.5], "bfloat16")
    assert difference([-1.0], [value]).mean != difference([-1.0], [value]).mean
    with pytest.raises(BadWeights, match="the probe has 2 log-probabilities"):
        check_probe(Probe([7, 8, 9], [-1.0, -2.0]), [-1.0], "float32")


def test_a_probe_survives_its_way_to_the_servers() -> None:
    for probe in (TEXT, TEXT._replace(dtype="tf32", noise=Difference(0.25, 0.5))):
        assert load_probe(dump_probe(probe)) == probe
    with pytest.raises(TypeError, match="dtype 'int8' is not one of"):
        load_probe({**dump_probe(TEXT), "dtype": "int8"})
    for name, value in (("logprobs", [None]), ("logprobs", 3), ("noise", ["a", "b"]), ("token_ids", {})):
        with pytest.raises(TypeError, match=f"{name} is not a list of numbers"):
            load_probe({**dump_probe(TEXT), name: value})
