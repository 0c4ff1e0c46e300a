"""Probe: a prompt whose log-probabilities must agree between trainer and servers, as proof of the same model."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from areal_like.weights.errors import BadWeights


class Tolerance(NamedTuple):
    """Allowed difference between two implementations of one model: for any token's log-probability, and on average."""

    worst: float
    mean: float


TOLERANCES = {
    "float32": Tolerance(1e-4, 1e-4),
    "bfloat16": Tolerance(0.5, 0.05),
    "float16": Tolerance(0.5, 0.05),
}
"""By compute precision. Half precision rounds a logit of 16 to the next eighth, so that one unlikely token may differ;
another model differs in all of them."""


class Probe(NamedTuple):
    """`logprobs[i]` is the trainer's log-probability of `token_ids[i + 1]` after all tokens before it, at temperature
    1; one fewer than tokens, as the first is not predicted."""

    token_ids: list[int]
    logprobs: list[float]


def check_probe(probe: Probe, got: Sequence[float], dtype: str) -> None:
    """Refuses a server whose log-probabilities of the probe differ too much from the trainer's."""
    if len(got) != len(probe.logprobs):
        raise BadWeights(
            f"the probe has {len(probe.logprobs)} log-probabilities ({len(probe.token_ids)} tokens), but the server "
            f"gave {len(got)}"
        )
    tolerance = TOLERANCES[dtype]
    differences = [abs(mine - theirs) for mine, theirs in zip(probe.logprobs, got, strict=True)]
    worst = max(
        range(len(differences)),
        key=lambda at: math.inf if math.isnan(differences[at]) else differences[at],
        default=None,
    )
    if worst is None or (differences[worst] <= tolerance.worst and fmean(differences) <= tolerance.mean):
        return
    token = probe.token_ids[worst + 1]
    raise BadWeights(
        f"trainer and server compute different models: for the probe's token {worst + 1} (id {token}) the trainer has "
        f"{probe.logprobs[worst]:.6g} and the server {got[worst]:.6g}; {dtype} allows a difference of "
        f"{tolerance.worst:g} ({tolerance.mean:g} on average over the probe, which is {fmean(differences):.2g}); "
        "check that both load the same model, and that the weights were not changed in between"
    )
