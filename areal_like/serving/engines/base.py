"""The interface of an external engine, which vLLM and SGLang implement; one object per engine server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from areal_like.weights.buckets import TensorInfo
from areal_like.weights.index import Index
from areal_like.weights.rendezvous import Rendezvous

MAX_IN_FLIGHT = 1024
"""Concurrent requests to one engine, each on its own connection; further requests wait in the queue."""


class NotReady(Exception):
    """The engine does not answer yet; try again."""


class IncompatibleEngine(ValueError):
    """The engine has another model, belongs to another run, or has an unsupported version."""


class EngineGone(Exception):
    """The engine no longer answers, or failed at a request."""


class GenerateRequest(NamedTuple):
    """`n` samples of one prompt. `sampling` has the keys of `gconfig`; its max_new_tokens counts the tokens that are
    still missing. `adapter` is None for the base model."""

    id: str
    prompt: Sequence[int]
    n: int
    seed: int
    sampling: Mapping[str, Any]
    adapter: str | None = None
    priority: int = 0


class NotStaged(Exception):
    """The engine did not start to load the new weights and still serves the old ones."""


class GenerateOutput(NamedTuple):
    """A complete sample, or its part that existed when the request was aborted. `versions` is None if the engine does
    not report the weight version of each token."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    """stop, length or abort."""
    versions: list[int] | None = None


class EngineInfo(NamedTuple):
    """What an engine reports about itself."""

    engine: str
    version: str
    model: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    processes: int = 1
    """Ranks that receive weights sent to this server."""


@dataclass(frozen=True)
class WeightUpdate:
    """New weights: in files in `folder`, or sent by the trainer at `rendezvous`."""

    version: int
    index: Index
    folder: Path | None = None
    rendezvous: Rendezvous | None = None


@dataclass
class Verification:
    """The served weights compared with the published ones. `hashes`: tensors that the engine shows completely;
    `wrong`: tensor -> difference; `uncovered`: tensors that the engine does not show, or only in part."""

    hashes: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    uncovered: list[str] = field(default_factory=list)


class InferenceEngine(Protocol):
    """All methods but `ready` raise EngineGone, or ValueError with what the engine refuses."""

    can_keep: bool
    """Whether requests can stay in the engine during a weight update, with the version of each token reported."""

    async def ready(self) -> EngineInfo:
        """Generates one token and returns what the engine is; raises NotReady or IncompatibleEngine."""

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]: ...

    async def abort(self, ids: Sequence[str] | None) -> None:
        """Ends requests with their tokens so far (finish `abort`); None means all."""

    async def pause(self) -> None:
        """Freezes running requests until `resume`. Only with `can_keep`."""

    async def resume(self) -> None: ...

    async def stage(self, update: WeightUpdate) -> None:
        """Loads new weights beside the live ones, during generation if the engine can; raises BadWeights."""

    async def commit(self, update: WeightUpdate) -> None:
        """Makes the staged weights live and drops caches of the old ones. Called while nothing is generated: running
        requests are paused (`can_keep`) or aborted. After a failure other than NotStaged the weights may be mixed."""

    async def discard(self) -> None:
        """Drops the staged weights."""

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        """Compares the served weights with the published ones."""

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """The log-probability of each token after the first, at temperature 1, computed without a cache."""

    async def loaded_adapters(self) -> list[str]:
        """The names of all loaded adapters, including those of other runs."""

    async def load_adapter(self, name: str, folder: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def statistics(self) -> dict[str, Any]:
        """At least `running` and `waiting`, in requests."""

    async def close(self) -> None:
        """Closes the connections."""
