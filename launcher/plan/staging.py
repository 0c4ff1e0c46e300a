"""Room on the servers' GPUs for new weights, taken from the KV cache: those that are sent stay there, beside those in
use, until they are applied; of files a bucket at a time, where the workers of a server read a share each."""

from collections.abc import Sequence
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers
from areal_like.config.dotted_path import value_of
from areal_like.config.experiment import GRPOConfig
from areal_like.config.number_text import size_text
from areal_like.config.problems import Problem
from areal_like.models.model_shape import BYTES
from areal_like.serving.engines.engine_site import CONTEXT_BYTES, SPARE_BYTES
from areal_like.serving.engines.registry import engine_spec
from areal_like.serving.engines.spec import EngineSpec
from areal_like.weights.buckets import MAX_BUCKET_BYTES, MAX_SENT_BYTES
from areal_like.weights.transfer_path import FILE_MODES, SHARED_BUFFER_BYTES, SHARED_BUFFERS
from launcher.plan.host import HostInfo
from launcher.plan.lengths import least_cache_tokens
from launcher.plan.memory import server_memory
from launcher.plan.model_config import known_shape
from launcher.plan.plan import Resolved, ServerMemory
from launcher.plan.rank_memory import unknown_size
from launcher.plan.sent_copy import are_sent_between_gpus

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig


class Staging(NamedTuple):
    """`num_bytes`: of each GPU of a server; 0 where new weights are not kept there."""

    num_bytes: int = 0
    resolved: tuple[Resolved, ...] = ()
    words: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class Route(NamedTuple):
    """How new weights come to a server's GPUs, as text."""

    stays: str
    """Where they have room."""
    takes: str
    """How long, after their size."""
    otherwise: str
    """Where they have none."""


SENT = Route(
    "new weights stay on the servers' GPUs if",
    "until they are applied",
    "they go through main memory, which takes longer",
)
FILES = Route(
    "new weights in files outside of shared memory can pass through the servers' GPUs if",
    "while they are applied, where their files are not in shared memory",
    "a server may then end for lack of memory",
)


def plan_staging(
    config: "BaseExperimentConfig",
    allocation: Allocation | None,
    host: HostInfo,
    auto: dict[str, Resolved],
    on_shared_gpu: int,
    written: Sequence[str],
) -> Staging:
    """`auto`: what every `auto` became so far; `on_shared_gpu`: the room beside server and trainer, and `written` the
    keys that decide what that server takes."""
    route = _route(config, allocation, host)
    if route is None or allocation is None or allocation.rollout is None:
        return Staging()
    assert isinstance(config, GRPOConfig)
    needed = staged_bytes(config, allocation, host)
    gpu_bytes = host.gpus[0].memory_bytes if host.gpus else None
    server, spec = server_memory(config, allocation, host), engine_spec(allocation.rollout.backend)
    unknown = "" if server else "the size of the model"
    unknown = unknown or (unknown_size(config, host) if allocation.shared_device else "")
    if gpu_bytes is None or server is None or unknown:
        unknown = unknown or "the memory of the GPUs"
        return Staging(words=(f"{route.stays} these have room: {unknown} is not known",))
    room = Room(route, needed)
    if allocation.shared_device:
        key = next(iter(written), spec.keys.length_key)
        return room.planned() if on_shared_gpu else room.lacking(key, "beside the server and what the trainer needs")
    usable = gpu_bytes - CONTEXT_BYTES
    fraction, cache = _written(config, spec.keys.memory_key), written_cache(config, spec, server)
    usual = auto.get(spec.keys.memory_key)
    if cache is None and usual is not None and isinstance(usual.value, float):
        return _lower(config, spec, server, host, usual, room, usable)
    outside = spec.working_bytes if excludes_working(spec) else 0
    if cache is not None:
        taken = server.weights + spec.working_bytes + cache
    elif isinstance(fraction, float):
        taken = int(fraction * usable) + outside
    else:
        return Staging(words=(f"{route.stays} the engine leaves them room",))
    if taken + needed <= usable:
        return room.planned()
    key = spec.keys.memory_key if cache is None else spec.keys.cache_bytes_key or spec.keys.cache_tokens_key
    left = f"leaves {size_text(max(0, usable - taken))} of a server's GPU, and {room.size} {route.takes}"
    return Staging(problems=(Problem(key, f"{left}: {route.otherwise}; lower it, or set it to auto"),))


def staged_bytes(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> int:
    """Of each GPU of a server: new weights in the trainer's precision, and the buffers that they come through. Several
    GPUs keep a share each, which may be larger by a tensor, beside the bucket that arrives; one that passes them on
    collects a layer. Of files a GPU has nothing else. 0 where none come to GPUs so, or the size of the model is not
    known."""
    route = _route(config, allocation, host)
    if route is None or allocation is None:
        return 0
    assert isinstance(config, GRPOConfig)
    shape = known_shape(config.actor.path, host)
    if shape is None:
        return 0
    width, gpus = BYTES[config.actor.dtype], gpus_per_server(allocation)
    tensor, layer = shape.embedding * width, shape.layer * width
    if route is FILES:
        return max(MAX_BUCKET_BYTES, tensor, layer) + SPARE_BYTES
    kept, at_once = shape.parameters() * width, 0
    if gpus > 1:
        kept, at_once = ceil(kept / gpus) + tensor, max(MAX_SENT_BYTES, tensor, layer)
    buffers = SHARED_BUFFERS * SHARED_BUFFER_BYTES if allocation.shared_device else 0
    return kept + at_once + buffers + SPARE_BYTES


def gpus_per_server(allocation: Allocation) -> int:
    """GPUs of one server."""
    return allocation.rollout.tensor * allocation.rollout.pipeline if allocation.rollout else 1


def written_cache(config: GRPOConfig, spec: EngineSpec, server: ServerMemory) -> int | None:
    """Bytes of the cache whose size a key sets; None where no key does."""
    size = _written(config, spec.keys.cache_bytes_key)
    tokens = _written(config, spec.keys.cache_tokens_key)
    if size is not None:
        return int(size)
    return None if tokens is None else int(tokens) * server.kv_bytes_per_token


def excludes_working(spec: EngineSpec) -> bool:
    """Whether the engine's fraction of a GPU is of weights and cache alone."""
    return bool(spec.keys.cache_tokens_key)


class Room(NamedTuple):
    """What new weights take of each GPU of a server."""

    route: Route
    num_bytes: int

    @property
    def size(self) -> str:
        return f"new weights take {size_text(self.num_bytes)}"

    def planned(self) -> Staging:
        words = f"{self.size} of each server's GPU {self.route.takes}, beside its cache"
        return Staging(self.num_bytes if self.route is SENT else 0, words=(words,))

    def lacking(self, key: str, beside: str) -> Staging:
        what = f"{self.size} of a server's GPU {self.route.takes}, and do not fit {beside}: {self.route.otherwise}"
        return Staging(problems=(Problem(key, f"{what}; lower it, or use more or larger GPUs"),))


def _route(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> Route | None:
    """None where new weights take no memory of the servers' GPUs that the plan counts."""
    if allocation is None or allocation.rollout is None or not isinstance(config, GRPOConfig):
        return None
    spec = engine_spec(allocation.rollout.backend)
    if spec.keys.extension_key and value_of(config, spec.keys.extension_key):
        return None
    if are_sent_between_gpus(config, allocation, host):
        return SENT if spec.receives_on_gpu else None
    by_files = config.actor.weight_update_mode in FILE_MODES and starts_servers(config) and allocation.actor
    is_divided = spec.divides_files and allocation.num_gpus and gpus_per_server(allocation) > 1
    return FILES if by_files and is_divided else None


def _written(config: GRPOConfig, key: str) -> Any:
    value = value_of(config, key) if key else None
    return None if value == "auto" else value


def _lower(
    config: GRPOConfig,
    spec: EngineSpec,
    server: ServerMemory,
    host: HostInfo,
    usual: Resolved,
    room: Room,
    usable: int,
) -> Staging:
    """A smaller fraction of the GPU for the engine, if its cache then still holds its longest sequence."""
    shape = known_shape(config.actor.path, host)
    longest = least_cache_tokens(config, spec.name, shape.max_positions if shape else None)
    least = server.weights + longest * server.kv_bytes_per_token
    least += 0 if excludes_working(spec) else spec.working_bytes
    lowered = floor(1000 * (usual.value - room.num_bytes / usable)) / 1000
    if lowered * usable < least:
        beside = f"beside weights of {size_text(server.weights)} and a cache for one sequence"
        return room.lacking(spec.keys.length_key, beside)
    reason = f"{usual.value} less {size_text(room.num_bytes)}, which new weights take {room.route.takes}"
    return room.planned()._replace(resolved=(Resolved(spec.keys.memory_key, lowered, reason),))


def staging_warnings(staging: Staging) -> tuple[Problem, ...]:
    """New weights that have no room."""
    return staging.problems
