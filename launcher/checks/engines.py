"""The environment of an external engine: its Python, its version, its own check of the flags."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.capacity import GPUS_KEY
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.checks.training import has_trainer
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engine_names
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.serving.engines.external.installations import Installation, unsupported_version, version_range
from areal_like.serving.engines.registry import engine_spec
from areal_like.serving.engines.spec import EngineSpec
from launcher.plan.host import HostInfo
from launcher.plan.plan import Plan, Resolved

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

ENGINE, EVALUATION_ENGINE = "engine", "evaluation_engine"
"""Among the servers of a plan."""
ENGINE_SEPARATOR = "--"
"""In the command of a server of ours: the command of an external engine follows."""


def is_external(backend: str | None) -> bool:
    return backend is not None and engine_spec(backend).is_external


def external_engine(config: "BaseExperimentConfig", allocation: Allocation | None) -> EngineSpec | None:
    """The external engine of the servers that this run starts; None for an engine inside of our servers."""
    if not isinstance(config, GRPOConfig) or not starts_servers(config):
        return None
    if allocation is None or allocation.rollout is None or config.cluster.type != "local":
        return None
    return engine_spec(allocation.rollout.backend) if is_external(allocation.rollout.backend) else None


def find_engine(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo
) -> Installation | str | None:
    """The installation; None for an engine without one of its own; a text with the reason where it is missing."""
    spec = external_engine(config, allocation)
    if spec is None or spec.distribution is None or allocation is None:
        return None
    configured = value_of(config, spec.distribution.key)
    try:
        return host.find_engine(spec.distribution, configured, host.directory, allocation.num_gpus > 0)
    except ValueError as fault:
        return str(fault)


def resolved_engine(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> list[Resolved]:
    """The Python that is used where `<engine>.python` is null."""
    spec, found = external_engine(config, allocation), find_engine(config, allocation, host)
    if spec is None or spec.distribution is None or not isinstance(found, Installation) or not host.is_here:
        return []
    if value_of(config, spec.distribution.key) is not None:
        return []
    reason = f"{spec.keys.title} {found.version}: {found.where}"
    return [Resolved(spec.distribution.key, found.python, reason)]


def engine_problems(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> list[Problem]:
    others = None if allocation is None else allocation.for_evaluations
    return [*_installation_problems(config, allocation, host), *_installation_problems(config, others, host)]


def _installation_problems(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo
) -> list[Problem]:
    spec, found = external_engine(config, allocation), find_engine(config, allocation, host)
    devices_are_missing = allocation is not None and any(need.key == GPUS_KEY for need in allocation.needs)
    if spec is None or spec.distribution is None or found is None or devices_are_missing:
        return []
    why = unsupported_version(spec.distribution, found.version) if isinstance(found, Installation) else found
    return [Problem(spec.distribution.key, why)] if why else []


def update_mode_problems(config: "BaseExperimentConfig", allocation: Allocation | None) -> list[Problem]:
    """The first weight update would report this only after the first step."""
    if not generates(config) or not has_trainer(allocation) or config.rollout.update_mode != "keep":
        return []
    started = allocation if allocation is not None and starts_servers(config) else Allocation()
    engines = [each.backend for each in (started.rollout, started.evaluators) if each is not None]
    for spec in (engine_spec(name) for name in engines or [config.rollout.server_type] if name in engine_names()):
        if spec.cannot_keep:
            reason = f"keep is not supported by {spec.keys.title}, {spec.cannot_keep}"
            return [Problem("rollout.update_mode", f"{reason}; use abort, wait or auto")]
    return []


def engine_infos(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> dict[str, Any]:
    """What a plan shows of the engine, and of that of servers for evaluations alone if it is another one."""
    others = None if allocation is None else allocation.for_evaluations
    own = {} if others is None else {EVALUATION_ENGINE: engine_info(config, others, host)}
    return {ENGINE: engine_info(config, allocation, host), **own}


def engine_info(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> dict[str, Any] | None:
    """What a plan shows of the engine."""
    spec, found = external_engine(config, allocation), find_engine(config, allocation, host)
    if spec is None or spec.distribution is None or not isinstance(found, Installation):
        return None
    return {"name": spec.name, **found._asdict(), "supported": version_range(spec.distribution)}


def flag_problems(plan: Plan) -> Iterator[Problem]:
    """Flags that the installed engine's own parser refuses. Checked only at a start, as it takes seconds."""
    servers = [process for process in plan.processes if process.role == "server"]
    for name, server in zip((ENGINE, EVALUATION_ENGINE), (servers[:1], servers[-1:]), strict=True):
        engine = plan.servers.get(name)
        parser = engine_spec(engine["name"]).flag_parser if engine is not None else None
        for process in server if parser is not None else ():
            from areal_like.serving.engines.external.flag_check import refused_flags

            words = process.command[process.command.index(ENGINE_SEPARATOR) + 1 :]
            assert parser is not None
            yield from (Problem(key, reason) for key, reason in refused_flags(parser, words[0], words, process.env))
