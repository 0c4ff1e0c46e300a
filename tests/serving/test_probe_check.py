"""A server compares its answer to the probe with its own answer for earlier weights."""

from typing import Any

import pytest

from areal_like.serving.engines.base import EngineInfo
from areal_like.serving.probe_check import ProbeCheck
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import Difference, Probe

NOISE = Difference(0.02, 0.1)
OLD = [-1.0, -2.0, -3.0, -4.0]


def checker(**known: Any) -> ProbeCheck:
    facts: dict[str, Any] = {"engine": "e", "version": "1", "model": "m", "context_length": 9, "vocab_size": 9}
    return ProbeCheck(EngineInfo(**facts, eos_token_ids=(1,), **{"dtype": "bfloat16", **known}))


def weights(version: int, new: int = 4) -> list[TensorInfo]:
    """Of four tensors; `new` of them belong to this version alone."""
    return [TensorInfo(f"t{at}", "bfloat16", (2,), f"{version if at < new else 0}") for at in range(4)]


def probe(change: float, **more: Any) -> Probe:
    return Probe([1, 2, 3, 4, 5], [each + change for each in OLD], noise=NOISE, **more)


def test_an_unchanged_answer_to_a_changed_model_is_refused() -> None:
    """The change is below what the noise hides."""
    check = checker()
    check.check(probe(0.0), OLD, weights(0))
    with pytest.raises(BadWeights, match=r"computes with old weights: .* changed by 0.015 on average and 4 of 4 tens"):
        check.check(probe(0.015), OLD, weights(1))


def test_small_changes_add_up_until_they_are_noticed() -> None:
    check = checker()
    for version in range(5):
        check.check(probe(0.002 * version), OLD, weights(version))
    with pytest.raises(BadWeights, match="computes with old weights"):
        check.check(probe(0.012), OLD, weights(6))


@pytest.mark.parametrize(
    ("change", "answer", "new"),
    [
        (0.015, [*OLD[:3], OLD[3] - 1e-5], 4),  # one token moved
        (0.015, OLD, 1),  # hardly any weights changed: they may be lost in rounding
        (0.005, OLD, 4),  # the trainer's answer moved by less than its own rounding may
    ],
)
def test_an_answer_that_may_be_right_is_accepted(change: float, answer: list[float], new: int) -> None:
    check = checker()
    check.check(probe(0.0), OLD, weights(0))
    check.check(probe(change), answer, weights(1, new))


def test_another_probe_begins_anew() -> None:
    """That of another run, which a server serves after the first."""
    check = checker()
    check.check(probe(0.0), OLD, weights(0))
    check.check(probe(0.015)._replace(token_ids=[5, 4, 3, 2, 1]), OLD, weights(1))


def test_a_server_on_a_gpu_computes_float32_in_tf32() -> None:
    assert checker(dtype="float32", devices=("GPU-1",)).dtype == "tf32"
    assert checker(dtype="float32").dtype == "float32"
