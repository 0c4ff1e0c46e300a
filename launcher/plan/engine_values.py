"""Resolves every `auto` of an inference engine's keys by its spec, which is given the machine and the model."""

from collections.abc import Iterator

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import starts_servers
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_keys
from areal_like.config.experiment import GRPOConfig
from areal_like.serving.engines.engine_site import EngineSite
from areal_like.serving.engines.registry import engine_spec
from launcher.checks.engines import resolved_engine
from launcher.plan.host import HostInfo
from launcher.plan.lengths import resolved_context_length
from launcher.plan.model_config import known_shape
from launcher.plan.placement import PlacementPlan
from launcher.plan.plan import Resolved


def resolved_engine_values(config: GRPOConfig, allocation: Allocation, host: HostInfo) -> Iterator[Resolved]:
    if (others := allocation.for_evaluations) is not None:
        yield from resolved_engine_values(config, others, host)
    yield from resolved_engine(config, allocation, host)
    if allocation.rollout is None:
        return
    spec, starts = engine_spec(allocation.rollout.backend), starts_servers(config)
    if starts:
        yield from resolved_context_length(config, spec.name, host)
    if starts or not spec.is_external:
        yield from (Resolved(*value) for value in spec.autos(config, engine_site(config, allocation, host)))


def resolved_threads(config: GRPOConfig, allocation: Allocation, placement: PlacementPlan) -> Iterator[Resolved]:
    """Of an engine inside the server's process; they follow from the placement."""
    for index in sorted({0, len(placement.servers) - 1} if placement.servers else (), reverse=True):
        key = engine_keys(allocation.server(index).backend).threads_key
        if key and value_of(config, key) == "auto":
            yield Resolved(key, placement.servers[index].threads, "its share of the cores")


def engine_site(config: GRPOConfig, allocation: Allocation, host: HostInfo) -> EngineSite:
    return EngineSite(
        on_gpu=bool(allocation.num_gpus),
        machine=host.machine.how,
        memory_bytes=host.memory_bytes,
        gpu_bytes=host.gpus[0].memory_bytes if host.gpus else None,
        servers=allocation.rollout.data if allocation.rollout else 0,
        shares_gpu=allocation.shared_device,
        trains=allocation.actor is not None,
        model=known_shape(config.actor.path, host),
    )
