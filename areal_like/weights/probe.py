"""A prompt whose log-probabilities trainer and servers must agree on, as the proof that they hold the same model."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from areal_like.weights.errors import BadWeights


class Tolerance(NamedTuple):
    """How far two implementations of one model may be apart: in the log-probability of any token, and on average."""

    worst: float
    mean: float


TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-4),
    "bfloat16": Tolerance(0.5, 0.05),
    "float16": Tolerance(0.5, 0.05),
}
"""By the precision that they compute in. Half precision rounds a logit of 16 to the next eighth, so that one unlikely
token says little; another model is apart in all of them."""


class Probe(NamedTuple):
    """`logprobs[i]` is that of `token_ids[i + 1]` after all tokens before it, at temperature 1, as the trainer has it.
    Nothing predicts the first token, so there is one fewer of them."""

    token_ids: list[int]
    logprobs: list[float]


def check_probe(probe: Probe, got: Sequence[float], dtype: str) -> None:
    """Refuses what a server says of the probe's tokens when it is too far from what the trainer says."""
    if len(got) != len(probe.logprobs):
        raise BadWeights(
            f"the probe has {len(probe.logprobs)} log-probabilities ({len(probe.token_ids)} tokens), but the server "
            f"gave {len(got)}"
        )
    tolerance = TOLERANCES[dtype]
    apart = [abs(mine - theirs) for mine, theirs in zip(probe.logprobs, got, strict=True)]
    worst = max(range(len(apart)), key=lambda at: math.inf if math.isnan(apart[at]) else apart[at], default=None)
    if worst is None or (apart[worst] <= tolerance.worst and fmean(apart) <= tolerance.mean):
        return
    token = probe.token_ids[worst + 1]
    raise BadWeights(
        f"trainer and server compute different models: of the probe's token {worst + 1} (id {token}) the trainer says "
        f"{probe.logprobs[worst]:.6g} and the server {got[worst]:.6g}, and {dtype} allows {tolerance.worst:g} between "
        f"them ({tolerance.mean:g} on average over the probe, which is {fmean(apart):.2g} off); "
        "see that both load the same model, and that no weights were changed on the way"
    )
