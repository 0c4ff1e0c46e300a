"""The interface of every inference engine, which the server drives: requests, weights, and what it reports."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from areal_like.process.errors import Failure
from areal_like.serving.requests import GroupRequest, StepSlot
from areal_like.weights.adapter import LoadedAdapter
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.index import Index
from areal_like.weights.probe import Probe
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.verify import Expected

if TYPE_CHECKING:
    from aiohttp import web

REQUEST_TIMEOUT = "rollout.request_timeout"
"""The key that limits requests, and all that loads weights."""
CALL_TIMEOUT = "rollout.call_timeout"
"""The key that limits all other calls."""
MAX_IN_FLIGHT = 1024
"""Concurrent requests to an engine without a queue of its own; further requests wait in ours."""


class EngineGone(Exception):
    """The engine no longer answers, or failed at a request."""


class NotStaged(Exception):
    """The engine did not start to load the new weights and still serves the old ones: they must be staged again."""


class NotApplied(ValueError):
    """The engine loaded the new weights, found a fault, and serves the old ones again."""


class PauseCancelled(ValueError):
    """Generation was resumed before it had stopped."""


class GenerateRequest(NamedTuple):
    """`n` samples of one prompt. `sampling` has the keys of `gconfig`; its max_new_tokens counts the tokens that are
    still missing. `adapter`: None for what the run serves. `group`: as the run sent it, in its first request, with the
    place in a synchronous step (`order`)."""

    id: str
    prompt: Sequence[int]
    n: int
    seed: int
    sampling: Mapping[str, Any]
    adapter: str | None = None
    priority: int = 0
    group: GroupRequest | None = None


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
    devices: tuple[str, ...] = ()
    """The GPU of each rank, if known."""
    dtype: str = "bfloat16"
    """Its precision, or the coarsest if unknown."""
    length_key: str = "rollout"
    """The configuration key that limits prompt and answer together."""
    tensors: Expected | None = None
    """The tensors that new weights must have; None: those of its checkpoint."""


@dataclass(frozen=True)
class WeightUpdate:
    """New weights: in files in `folder`, sent by the trainer at `rendezvous`, or an `adapter` that was read and
    verified."""

    version: int
    index: Index
    folder: Path | None = None
    rendezvous: Rendezvous | None = None
    adapter: LoadedAdapter | None = None


@dataclass
class Verification:
    """The served weights compared with the published ones. `hashes`: tensors that the engine shows completely;
    `wrong`: tensor -> difference; `uncovered`: tensors that the engine does not show, or only in part."""

    hashes: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    uncovered: list[str] = field(default_factory=list)


class SwapResult(NamedTuple):
    """What an engine found that verifies new weights before it goes on. `stall_s`: seconds without generation."""

    stall_s: float
    check: Verification
    probe_logprobs: list[float]


class Usage(NamedTuple):
    """Totals since the start: generated tokens, and seconds in which something was generated."""

    tokens: int
    busy_s: float


class ClientAccess(Protocol):
    """What the routes for clients outside of the run use of the server. `model` is its name for them;
    `request_timeout_s` limits their requests."""

    model: str
    request_timeout_s: float

    @property
    def is_used_by_run(self) -> bool:
        """Whether a run sent a request recently."""

    @property
    def is_paused(self) -> bool: ...

    @property
    def num_aborts(self) -> int:
        """How often all running requests were aborted."""

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a client shows the key."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Waits until a request of a client may go to the engine: after all requests of the run. Raises HttpError if
        the weights are damaged."""

    async def statistics(self) -> dict[str, Any]: ...


class InferenceEngine(Protocol):
    """Methods raise EngineGone, or ValueError with what the engine refuses. Engines inherit the defaults."""

    info: EngineInfo
    native_pauses: frozenset[str] = frozenset()
    """Modes in which the engine pauses itself. For the others its requests are aborted, or end, and others wait."""
    max_in_flight: int | None = MAX_IN_FLIGHT
    """None: it queues requests itself, also while it is paused, and gets all of them at once."""
    commits_while_generating: bool = False
    """Whether running requests go on with the new weights, so that `commit` needs no pause."""
    picks_adapter: bool = False
    """Whether it gives each group the newest adapter when the group begins: adapters are then staged and committed as
    other weights are. Otherwise each is loaded under its name, and requests name theirs."""
    hashes_files: bool = False
    """Whether `stage` verifies the hashes of files while it reads them."""
    has_pulse: bool = False
    """Whether it records its progress itself (`areal_like/process/pulse.py`). Otherwise the server asks it."""

    async def generate(self, request: GenerateRequest) -> list[GenerateOutput]: ...

    async def leave(self, place: StepSlot) -> None:
        """No group comes for this place, for which an engine that starts steps as a whole must not wait."""
        return None

    async def abort(self, ids: Sequence[str] | None) -> None:
        """Ends requests with their tokens so far (finish `abort`), or, for a request that is cancelled, without; None
        means all."""

    async def pause(self, mode: str) -> int | None:
        """One of `native_pauses`: returns once nothing is generated, with the number of unfinished samples if known.
        Raises PauseCancelled if `resume` comes first."""
        raise ValueError(f"mode: this engine has no pause with {mode}; use abort or wait")

    async def resume(self) -> None:
        raise ValueError("this engine has no pause")

    async def stage(self, update: WeightUpdate) -> None:
        """Loads new weights beside the live ones, during generation if the engine can; raises BadWeights."""

    async def commit(self, update: WeightUpdate, probe: Probe | None = None) -> SwapResult | None:
        """Makes the staged weights live and drops caches of the old ones. Unless `commits_while_generating`, it is
        called while nothing is generated: running requests are paused natively, or aborted. None: the weights are not
        verified yet. Raises NotStaged or NotApplied if the old weights serve on; after another fault they may be
        mixed."""

    async def discard(self) -> None:
        """Drops the staged weights."""
        return None

    async def name_version(self, version: int) -> None:
        """The weights with which the engine started are this version, for what it reports of each token."""
        return None

    async def forget(self) -> None:
        """The run went back to a checkpoint: the served weights are no longer its own."""
        return None

    async def verify(self, infos: Sequence[TensorInfo], folder: Path | None) -> Verification:
        """Compares the served weights with the published ones; without any, shows what it can."""

    async def logprobs(self, token_ids: Sequence[int], adapter: str | None = None) -> list[float]:
        """The log-probability of each token after the first, at temperature 1, computed without a cache."""

    async def loaded_adapters(self) -> list[str]:
        """The names of all loaded adapters, including those of other runs."""
        return []

    async def load_adapter(self, name: str, folder: Path) -> None:
        raise ValueError("transport: this engine takes no adapters; set actor.weight_update_mode=disk")

    async def unload_adapter(self, name: str) -> None:
        return None

    async def statistics(self) -> dict[str, Any]:
        """At least `running` and `waiting`; what it counts itself replaces the server's own counts. What it counts
        besides, such as tokens, is progress when it changes; without that, each answer is (`engine_pulse.py`)."""

    @property
    def usage(self) -> Usage | None:
        """None: the server counts."""
        return None

    def client_routes(self, access: ClientAccess) -> Sequence["web.RouteDef"]:
        """The routes of this engine for clients outside of the run, and its own control routes."""
        return ()

    async def gone(self) -> Failure:
        """Waits until the engine has ended, and returns why."""

    async def close(self) -> None:
        return None
