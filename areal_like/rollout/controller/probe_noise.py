"""How much right servers differ from the trainer in the probe: measured for each kind of server."""

import logging
from collections.abc import Mapping
from typing import Any

import orjson
import xxhash

from areal_like.weights.probe import Difference, Probe, check_probe, coarsest, tolerance

log = logging.getLogger(__name__)


class ProbeNoise:
    """The first weights that a server of a kind loads are those of the run's start: both sides have read the same
    checkpoint. Checkpoints keep what was measured, so that later weights are never the measure. `dtype`: the precision
    of servers that report none."""

    def __init__(self, dtype: str, saved: Mapping[str, Any]) -> None:
        self._dtype = dtype
        # Lists, of earlier releases, had the largest difference: the noise is measured again.
        self._by_kind = {kind: Difference(**noise) for kind, noise in saved.items() if isinstance(noise, Mapping)}

    def of(self, kind: str) -> Difference | None:
        return self._by_kind.get(kind)

    def kind_of(self, probe: Probe, health: Mapping[str, Any]) -> str:
        """Of a server that has not reported an update yet; empty while nothing is measured."""
        if not self._by_kind:
            return ""
        named = {"engine": f"{health['engine']} {health['engine_version']}"} if "engine" in health else {}
        return _kind(probe, {**health, **named}, health.get("dtype", self._dtype))

    def check(self, server: str, probe: Probe, report: Mapping[str, Any]) -> tuple[str, Difference]:
        """Refuses a server that computes another model. Returns its kind, and how much it differs."""
        dtype = report.get("dtype", self._dtype)
        kind = _kind(probe, report, dtype)
        noise = self._by_kind.get(kind)
        found = check_probe(probe._replace(noise=noise), report["probe_logprobs"], dtype)
        if noise is None:
            self._by_kind[kind] = found
            limit = tolerance(coarsest(dtype, probe.dtype), found)
            log.info(
                "probe: with weights v%d %s differs from the trainer by %.2g nats on average over %d tokens, by %.2g "
                "at one of ten (%s); later weights may differ by %.2g and %.2g",
                *(report["version"], server, found.mean, len(probe.logprobs), found.p90, kind),
                *(limit.mean, limit.p90),
            )
        return kind, found

    def state(self) -> dict[str, dict[str, float]]:
        return {kind: noise._asdict() for kind, noise in self._by_kind.items()}


def _kind(probe: Probe, report: Mapping[str, Any], dtype: str) -> str:
    """All that the noise depends on, beside the model."""
    processes = report.get("processes", 1)
    tokens = xxhash.xxh3_64_hexdigest(orjson.dumps(probe.token_ids))[:8]
    return (
        f"{report.get('engine', 'server')} in {dtype} x {processes}, trainer in {probe.dtype or dtype}, tokens {tokens}"
    )
