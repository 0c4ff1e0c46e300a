"""What an engine of others can do for a run; `vllm` and `sglang` are the kinds. One object speaks to one server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from areal_like.weights.buckets import TensorInfo
from areal_like.weights.index import Index
from areal_like.weights.rendezvous import Rendezvous as Meeting

MAX_IN_FLIGHT = 1024
"""Requests that one engine is asked at the same time, each on a connection of its own; further ones wait here."""


class NotReady(Exception):
    """It does not answer yet; ask again."""


class IncompatibleEngine(ValueError):
    """What answers is not what was asked for: another model, another run, a version that is not supported."""


class EngineGone(Exception):
    """The engine no longer answers, or has thrown away what it was asked for."""


class GenerateRequest(NamedTuple):
    """Answers to one prompt. `id` names the request to the engine; `sampling` has the keys of `gconfig`, with
    max_new_tokens as what is still wanted; `adapter` is None for the model by itself."""

    id: str
    prompt: Sequence[int]
    n: int
    seed: int
    sampling: Mapping[str, Any]
    adapter: str | None = None
    priority: int = 0


class NotStaged(Exception):
    """The engine has not begun to take new weights into use, and still has all of the old ones."""


class GenerateOutput(NamedTuple):
    """A whole answer, or as much of it as there was when the request was aborted. `versions` is None where the engine
    cannot tell which weights made which token."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    """stop, length or abort."""
    versions: list[int] | None = None


class EngineInfo(NamedTuple):
    """What a server says of itself."""

    engine: str
    version: str
    model: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    processes: int = 1
    """How many of them take part when weights are sent to it."""


@dataclass(frozen=True)
class WeightUpdate:
    """Weights on their way: `folder` where they lie in files, `meeting` where they are sent."""

    version: int
    index: Index
    folder: Path | None = None
    meeting: Meeting | None = None


@dataclass
class Verification:
    """What is in use after a load. `wrong`: tensor -> what is the matter with it; `uncovered`: tensors (or parts of
    them) that the engine has no public way to show; `hashes` of those that it shows whole."""

    hashes: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    uncovered: list[str] = field(default_factory=list)


class InferenceEngine(Protocol):
    """All methods but `ready` raise Stopped where the engine is gone, and ValueError with what it refuses."""

    can_keep: bool
    """Whether requests can stay in it while weights change, and it tells the version of every token."""

    async def ready(self) -> EngineInfo:
        """Has a token generated, and says what answers; raises NotReady or Unfit."""

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]: ...

    async def abort(self, ids: Sequence[str] | None) -> None:
        """Requests end with what they have (finish `abort`); None means all."""

    async def pause(self) -> None:
        """Nothing is generated until `resume`; running requests stay where they are. Only where `can_keep`."""

    async def resume(self) -> None: ...

    async def stage(self, update: WeightUpdate) -> None:
        """Brings new weights near, beside generation as far as the engine allows; raises BadWeights."""

    async def commit(self, update: WeightUpdate) -> None:
        """Makes them the live ones, and drops what was computed with the old ones. Nothing is being generated: running
        requests were paused (`can_keep`) or aborted. When this fails the engine may hold a mixture, unless it raises
        Untouched."""

    async def discard(self) -> None:
        """What was staged is not wanted any more."""

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        """Compares what is in use with what was published."""

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """Of each token after the first, at temperature 1, computed anew."""

    async def loaded_adapters(self) -> list[str]:
        """The names of those that are loaded, whoever has done it."""

    async def load_adapter(self, name: str, folder: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def statistics(self) -> dict[str, Any]:
        """At least `running` and `waiting`, requests."""

    async def close(self) -> None:
        """Lets connections go."""
