"""What the launcher and the servers know of an inference engine. Imports neither torch nor aiohttp."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from areal_like.config.checks.registry import Check
from areal_like.config.number_text import MIB
from areal_like.config.sections.engines.base import EngineKeys
from areal_like.serving.engines.engine_site import EngineBytes, EngineSite, GpuShare
from areal_like.serving.engines.external.command_line import ServerCommand, ServerSite
from areal_like.serving.engines.external.engine_log import MemoryHint
from areal_like.serving.engines.external.flag_check import FlagParser
from areal_like.serving.engines.external.installations import EngineDistribution

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig
    from areal_like.process.identity import Identity
    from areal_like.process.proof_handshake import ProofVerifier
    from areal_like.process.run import Run
    from areal_like.serving.engines.base import InferenceEngine
    from areal_like.serving.engines.external.external_engine import ExternalEngine

AutoValues = Callable[["GRPOConfig", EngineSite], Iterable[tuple[str, Any, str]]]
"""Keys that are `auto`, with value and reason."""
OpenEngine = Callable[["Run", "Identity", Any], AbstractAsyncContextManager["InferenceEngine"]]
CountBytes = Callable[["GRPOConfig", EngineSite, int], EngineBytes]
"""The number is that of the tokens of the longest sequence. The site has the model."""
Connect = Callable[[str, str, "Run", Path, "ProofVerifier | None"], "ExternalEngine"]
SharedGpuValues = Callable[[GpuShare | None], dict[str, tuple[Any, str]]]
"""Keys of the engine's section with value and reason, for a server that shares a GPU with a trainer. None: the size of
the model is not known."""


class HttpProbe(Protocol):
    """A server that runs already, before it is known what it is."""

    async def get(self, path: str) -> Any:
        """The JSON that it answers; None for anything else."""


def no_values(config: "GRPOConfig", site: EngineSite) -> Iterable[tuple[str, Any, str]]:
    return ()


def no_shared_values(share: GpuShare | None) -> dict[str, tuple[Any, str]]:
    return {}


def prepare_nothing(run: "Run") -> Any:
    """An engine that loads nothing before it is opened."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine either has a `command`, which starts processes of its own, and `connect`, or it is opened inside the
    server's process."""

    keys: EngineKeys
    open: OpenEngine | None = None
    """For an engine inside the server's process. Gets what `prepare` returned."""
    prepare: Callable[["Run"], Any] = prepare_nothing
    """Before the event loop, so that SIGTERM ends it: loads the model."""
    command: "Callable[[GRPOConfig, ServerSite], ServerCommand] | None" = None
    """Command line and environment of an engine in processes of its own."""
    takes_token: bool = False
    """Whether such an engine calls `take_token` when it starts; else it gets the run's token in its environment."""
    connect: Connect | None = None
    """The client of such an engine at an address. With proofs the engine must prove its identity."""
    answers_at: Callable[[HttpProbe], Awaitable[bool]] | None = None
    """Whether a server that runs already is of this engine."""
    distribution: EngineDistribution | None = None
    """For an engine in an environment of its own."""
    flag_parser: FlagParser | None = None
    autos: AutoValues = no_values
    shared_gpu: SharedGpuValues = no_shared_values
    weight_copies: int = 1
    """Copies of the weights that a server holds."""
    working_bytes: int = 1024 * MIB
    """Memory of a GPU that it takes beside weights and cache, without its context: activations, graphs, samples."""
    count_bytes: CountBytes | None = None
    """What a server takes of a GPU, where it depends on more: then the two numbers above are not read."""
    receives_on_gpu: bool = False
    """Whether its workers keep sent weights on their GPU until they are applied, if `STAGED_BYTES` has room."""
    divides_files: bool = False
    """Whether its workers read a share each of weight files that are not in shared memory, and pass it on."""
    memory_hints: tuple[MemoryHint, ...] = ()
    cannot_keep: str = ""
    """Why requests cannot stay in the engine during an update; empty if they can."""
    checks: tuple[Check, ...] = ()
    """Of a plan with servers of this engine; what they may ask for is in `launcher/checks/plan_checks.py`."""
    program_bytes: int = 256 * MIB
    """Memory of its processes before they load a model."""
    cores_per_worker: float = 0.5
    """Cores that a server needs for each device, at least."""

    @property
    def name(self) -> str:
        return self.keys.name

    @property
    def is_external(self) -> bool:
        """Whether it runs in processes of its own, with one of our servers in front."""
        return self.command is not None
