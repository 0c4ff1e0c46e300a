"""A version of the run's weights that is an adapter: made ready beside generation, then taken up between two steps."""

from pathlib import Path
from typing import NamedTuple

from areal_like.serving.embedded.core.llm_engine import LLMEngine
from areal_like.serving.embedded.weights.adapters import adapter_hashes
from areal_like.serving.embedded.weights.batched_lora import ServedAdapter
from areal_like.weights.adapter import read_adapter
from areal_like.weights.fingerprint import compare, dtype_name
from areal_like.weights.probe import Probe, check_probe


class PreparedAdapter(NamedTuple):
    """In the model's precision, and what its tensors must be read back as."""

    adapter: ServedAdapter
    version: int
    expected: dict[str, str]
    probe: Probe | None


def prepare_adapter(
    engine: LLMEngine, version: int, folder: Path, newer_than: int, run_id: str | None
) -> PreparedAdapter:
    """In any thread; raises BadWeights."""
    publication = read_adapter(folder, newer_than, run_id, version)
    whose = f"version {version} of the weights"
    adapter = engine.adapters.make(publication.files, f"v{version}", whose, version, str(folder))
    return PreparedAdapter(adapter, version, engine.adapters.expected_hashes(publication.files), publication.probe)


def serve_adapter(engine: LLMEngine, prepared: PreparedAdapter, probe: Probe | None) -> list[float]:
    """In the engine's thread: reads back what was loaded, computes the probe with it, and only then is it for new
    groups. Returns the probe's log-probabilities."""
    compare(prepared.expected, adapter_hashes(prepared.adapter), prepared.version)
    found: list[float] = []
    if (probe := probe or prepared.probe) is not None:
        found = engine.logprobs(probe.token_ids, prepared.adapter)
        check_probe(probe, found, dtype_name(engine.dtype))
    engine.adapt(prepared.adapter, prepared.version)
    return found
