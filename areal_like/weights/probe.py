"""Probe: tokens whose log-probabilities must agree between trainer and servers, as proof of the same model.

Two right implementations differ by rounding, and how much depends on the model and on the tokens. The noise is measured
with the first weights of a run, which both sides surely have; later differences may be ALLOWED times as large. The
largest difference of a token is no measure: from version to version it varies by as much by chance.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from areal_like.weights.errors import BadWeights

PROBE_TOKENS = 64
"""The mean over fewer is not stable."""
ALLOWED = 4.0
FLOAT32, TF32 = "float32", "tf32"


class Difference(NamedTuple):
    """Between two computations of the probe, in nats: the mean over all tokens, and `p90`, which nine of ten tokens do
    not exceed."""

    mean: float
    p90: float

    def times(self, factor: float) -> "Difference":
        return Difference(factor * self.mean, factor * self.p90)


class Rounding(NamedTuple):
    """What a precision explains. `accepted`: always, also where no noise was seen at first. `believed`: the largest
    noise; another model, or one with a wrong layer, differs by more."""

    accepted: Difference
    believed: Difference


STEP = 1 / 8
"""Between neighbours of bfloat16 from 16 to 32, where logits of likely tokens are."""
HALF = Rounding(Difference(STEP / 8, STEP), Difference(0.2, 0.6))
"""One logit is rounded to a neighbour at one of eight tokens."""
TF32_IS_FINER = 1 / 8
"""On a GPU kernels may multiply float32 with 10 bits after the point (TF32), three more than bfloat16 has."""
ROUNDING = {
    FLOAT32: Rounding(Difference(1e-4, 1e-4), Difference(1e-3, 3e-3)),
    TF32: Rounding(HALF.accepted.times(TF32_IS_FINER), HALF.believed.times(TF32_IS_FINER)),
    "float16": HALF,
    "bfloat16": HALF,
}
"""By precision of the computation, finest first."""


class Probe(NamedTuple):
    """`logprobs[i]` is the trainer's log-probability of `token_ids[i + 1]` after all tokens before it, at temperature
    1; one fewer than tokens, as the first is not predicted. `dtype`: the precision in which the trainer computed them;
    None: the server's. `noise`: how much right servers differ from it; None until that is measured."""

    token_ids: list[int]
    logprobs: list[float]
    dtype: str | None = None
    noise: Difference | None = None


def load_probe(content: Mapping[str, Any]) -> Probe:
    """Raises TypeError for fields that are missing, unknown or malformed."""
    probe = Probe(**content)
    for name, numbers in (("token_ids", probe.token_ids), ("logprobs", probe.logprobs), ("noise", probe.noise or ())):
        if not isinstance(numbers, list | tuple) or not all(isinstance(number, int | float) for number in numbers):
            raise TypeError(f"{name} is not a list of numbers")
    if probe.dtype is not None and probe.dtype not in ROUNDING:
        raise TypeError(f"dtype {probe.dtype!r} is not one of {', '.join(ROUNDING)}")
    return probe if probe.noise is None else probe._replace(noise=Difference(*probe.noise))


def dump_probe(probe: Probe) -> dict[str, Any]:
    return {**probe._asdict(), "noise": None if probe.noise is None else [*probe.noise]}


def precision(dtype: str, on_gpu: bool) -> str:
    """In which a model of this data type is computed."""
    return TF32 if dtype == FLOAT32 and on_gpu else dtype


def difference(mine: Sequence[float], theirs: Sequence[float]) -> Difference:
    """NaN where one of them is not finite."""
    gaps = [abs(one - other) for one, other in zip(mine, theirs, strict=True)]
    if not all(map(math.isfinite, gaps)):
        return Difference(math.nan, math.nan)
    return Difference(fmean(gaps), sorted(gaps)[9 * len(gaps) // 10]) if gaps else Difference(0.0, 0.0)


def check_probe(probe: Probe, got: Sequence[float], dtype: str) -> Difference:
    """Refuses a server whose log-probabilities of the probe differ too much from the trainer's. `dtype`: the server's
    precision."""
    if len(got) != len(probe.logprobs):
        raise BadWeights(
            f"the probe has {len(probe.logprobs)} log-probabilities ({len(probe.token_ids)} tokens), but the server "
            f"gave {len(got)}"
        )
    rounding = coarsest(dtype, probe.dtype)
    limit, found = tolerance(rounding, probe.noise), difference(probe.logprobs, got)
    if found.mean <= limit.mean and found.p90 <= limit.p90:
        return found
    gaps = [abs(mine - theirs) for mine, theirs in zip(probe.logprobs, got, strict=True)]
    worst = max(range(len(gaps)), key=lambda at: math.inf if math.isnan(gaps[at]) else gaps[at])
    allows = f"{rounding} allows"
    if probe.noise is not None:
        allows = f"with the run's first weights they differed by {_text(probe.noise)}, which in {rounding} allows"
    raise BadWeights(
        f"trainer and server compute different models: for the probe's token {worst + 1} (id "
        f"{probe.token_ids[worst + 1]}) the trainer has {probe.logprobs[worst]:.6g} and the server {got[worst]:.6g}; "
        f"{allows} a difference of {_text(limit)}, and the probe has {_text(found)}; check that both load the same "
        "model, and that the weights were not changed in between"
    )


def tolerance(dtype: str, noise: Difference | None) -> Difference:
    """What a server may differ by."""
    accepted, believed = ROUNDING[dtype]
    if noise is None:
        return believed
    allowed = noise.times(ALLOWED)
    return Difference(max(accepted.mean, allowed.mean), max(accepted.p90, allowed.p90))


def _text(found: Difference) -> str:
    return f"{found.mean:.3g} on average ({found.p90:.3g} at one of ten tokens)"


def coarsest(one: str, other: str | None) -> str:
    """Of two precisions; None: the other one."""
    order = list(ROUNDING)
    return max((one, other or one), key=order.index)
