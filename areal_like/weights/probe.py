"""Probe: tokens whose log-probabilities must agree between trainer and servers, as proof of the same model.

Two right implementations differ by rounding, and how much depends on the model and on the tokens. The noise is measured
with the first weights of a run, which both sides surely have; after that, differences up to ALLOWED times the noise are
accepted. The largest difference of a token is that of all versions since the first: a few tokens say little about it.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from areal_like.weights.errors import BadWeights

PROBE_TOKENS = 64
"""The mean over fewer is not stable."""
ALLOWED = 4.0
ENOUGH_TOKENS = 1000
"""The largest difference of so many tokens is hardly ever exceeded by four times in the next ones."""
WORST_BY_CHANCE = 16.0
"""The largest of 63 differences is 3 to 12 times their mean, and changes with every update by as much as that. So until
there are enough tokens, the limit of one does not follow from a noise of less than so many times the mean."""
FLOAT32, TF32 = "float32", "tf32"


class Difference(NamedTuple):
    """Between two computations of the probe: of the token with the largest, and the mean over all tokens; in nats."""

    worst: float
    mean: float

    def times(self, factor: float) -> "Difference":
        return Difference(factor * self.worst, factor * self.mean)


class Noise(NamedTuple):
    """`mean` with the first weights, `worst` of all `tokens` since then."""

    worst: float
    mean: float
    tokens: int = 0

    def widened(self, found: Difference, tokens: int) -> "Noise":
        """By a right answer of another version."""
        return Noise(max(self.worst, found.worst), self.mean, self.tokens + tokens)


class Rounding(NamedTuple):
    """What a precision explains. `accepted`: always, also where no noise was seen at first. `believed`: the largest
    noise; another model, or one with a wrong layer, differs by more."""

    accepted: Difference
    believed: Difference


STEP = 1 / 8
"""Between neighbours of bfloat16 from 16 to 32, where logits of likely tokens are."""
HALF = Rounding(Difference(2 * STEP, STEP / 8), Difference(5.0, 0.2))
"""At one token, both its own logit and the largest one may be rounded to a neighbour; at one of eight, one of them."""
TF32_IS_FINER = 1 / 8
"""On a GPU kernels may multiply float32 with 10 bits after the point (TF32), three more than bfloat16 has."""
ROUNDING = {
    FLOAT32: Rounding(Difference(1e-4, 1e-4), Difference(1e-2, 1e-3)),
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
    noise: Noise | None = None


def load_probe(content: Mapping[str, Any]) -> Probe:
    """Raises TypeError for fields that are missing, unknown or malformed."""
    probe = Probe(**content)
    for name, numbers in (("token_ids", probe.token_ids), ("logprobs", probe.logprobs), ("noise", probe.noise or ())):
        if not isinstance(numbers, list | tuple) or not all(isinstance(number, int | float) for number in numbers):
            raise TypeError(f"{name} is not a list of numbers")
    if probe.dtype is not None and probe.dtype not in ROUNDING:
        raise TypeError(f"dtype {probe.dtype!r} is not one of {', '.join(ROUNDING)}")
    return probe if probe.noise is None else probe._replace(noise=Noise(*probe.noise))


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
    return Difference(max(gaps, default=0.0), fmean(gaps) if gaps else 0.0)


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
    if found.worst <= limit.worst and found.mean <= limit.mean:
        return found
    gaps = [abs(mine - theirs) for mine, theirs in zip(probe.logprobs, got, strict=True)]
    worst = max(range(len(gaps)), key=lambda at: math.inf if math.isnan(gaps[at]) else gaps[at])
    allows = f"{rounding} allows"
    if probe.noise is not None:
        before = f"{probe.noise.mean:.2g} on average, in a token by {probe.noise.worst:.2g} at most until now"
        allows = f"with the run's first weights they differed by {before}, which in {rounding} allows"
    raise BadWeights(
        f"trainer and server compute different models: for the probe's token {worst + 1} (id "
        f"{probe.token_ids[worst + 1]}) the trainer has {probe.logprobs[worst]:.6g} and the server {got[worst]:.6g}; "
        f"{allows} a difference of {limit.worst:.3g} ({limit.mean:.3g} on average over the probe, which is "
        f"{fmean(gaps):.2g}); check that both load the same model, and that the weights were not changed in between"
    )


def tolerance(dtype: str, noise: Noise | None) -> Difference:
    """What a server may differ by."""
    accepted, believed = ROUNDING[dtype]
    if noise is None:
        return believed
    worst = noise.worst
    if noise.tokens < ENOUGH_TOKENS:
        worst = max(worst, WORST_BY_CHANCE * noise.mean)
    return Difference(max(accepted.worst, ALLOWED * worst), max(accepted.mean, ALLOWED * noise.mean))


def coarsest(one: str, other: str | None) -> str:
    """Of two precisions; None: the other one."""
    order = list(ROUNDING)
    return max((one, other or one), key=order.index)
