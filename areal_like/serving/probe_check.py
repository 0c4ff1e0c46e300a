"""Compares a server's log-probabilities of the probe with the trainer's, and with its own for earlier weights."""

from collections.abc import Sequence
from typing import NamedTuple

from areal_like.serving.engines.base import EngineInfo
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import ROUNDING, Probe, check_probe, difference, precision

CHANGED_TENSORS = 0.5
"""Share of the tensors that new weights must change before an equal answer is a fault: a very small change may be lost
in rounding."""
NOTICEABLE = 0.5
"""By how much the trainer's own answer must have changed, in multiples of the noise."""
LAST_DIGIT = 1e-6
"""Of a log-probability in float32."""


class ProbeAnswer(NamedTuple):
    """The answer to a probe, with the hashes of the first weights that gave it."""

    probe: Probe
    logprobs: list[float]
    hashes: dict[str, str]


class ProbeCheck:
    """Of one server."""

    def __init__(self, info: EngineInfo) -> None:
        self.dtype = precision(info.dtype, on_gpu=bool(info.devices))
        self._before: ProbeAnswer | None = None

    def check(self, probe: Probe, logprobs: Sequence[float], infos: Sequence[TensorInfo]) -> None:
        """Raises BadWeights. New weights that leave every digit of the answer as it was, though the trainer's answer
        changed, are not used: that shows an update which is too small to be seen beside the noise."""
        check_probe(probe, logprobs, self.dtype)
        hashes = {info.name: info.hash for info in infos}
        before = self._before
        if before is None or before.probe.token_ids != probe.token_ids or before.logprobs != list(logprobs):
            self._before = ProbeAnswer(probe, list(logprobs), hashes)
            return
        changed = sum(before.hashes.get(name) != value for name, value in hashes.items())
        moved = difference(before.probe.logprobs, probe.logprobs).mean
        noise = probe.noise.mean if probe.noise is not None else ROUNDING[self.dtype].accepted.mean
        if changed > CHANGED_TENSORS * len(hashes) and moved > NOTICEABLE * max(noise, LAST_DIGIT):
            raise BadWeights(
                f"the server computes with old weights: it gives every token of the probe the same log-probability as "
                f"before, while those of the trainer changed by {moved:.2g} on average and {changed} of {len(hashes)} "
                "tensors are new; check that the engine keeps no copy of weights (captured graphs, caches)"
            )
