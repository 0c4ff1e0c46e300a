"""The environment of an external engine (vLLM, SGLang): its Python, its version, its own check of the flags."""

from typing import TYPE_CHECKING, Any

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import generates, starts_servers
from areal_like.config.experiment import GRPOConfig
from areal_like.serving.engines.external.installations import TITLES, Installation, unsupported_version, version_range
from launcher.plan.host import HostInfo
from launcher.plan.model_shape import find_config, shape_of
from launcher.plan.plan import Plan, PlanProblem, Resolved

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

EXTERNAL_ENGINES = ("vllm", "sglang")
"""Engines that run in their own process, with one of our servers in front of each."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's CPU attention supports (0.32)."""
ENGINE_SEPARATOR = "--"
"""In the command of that server: the engine's own command follows."""


def engine_name(config: "BaseExperimentConfig", allocation: Allocation | None) -> str | None:
    """The external engine of the servers that this run starts; None for the embedded engine."""
    if not isinstance(config, GRPOConfig) or not starts_servers(config):
        return None
    if allocation is None or allocation.rollout is None or config.cluster.type != "local":
        return None
    return allocation.rollout.backend if allocation.rollout.backend in EXTERNAL_ENGINES else None


def find_engine(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo
) -> Installation | str | None:
    """The installation; None for the embedded engine; a text with the reason where it is missing."""
    name = engine_name(config, allocation)
    if name is None or allocation is None:
        return None
    try:
        return host.find_engine(name, getattr(config, name).python, host.directory, allocation.num_gpus > 0)
    except ValueError as fault:
        return str(fault)


def resolved_engine_options(config: GRPOConfig, engine: str, on_gpu: bool) -> list[Resolved]:
    """The engine's own options that are `auto`."""
    from areal_like.serving.engines.sglang.auto_values import auto_values as of_sglang
    from areal_like.serving.engines.vllm.auto_values import auto_values as of_vllm

    values = {"vllm": of_vllm, "sglang": of_sglang}[engine](on_gpu).items()
    section = getattr(config, engine)
    return [Resolved(f"{engine}.{name}", *choice) for name, choice in values if getattr(section, name) == "auto"]


def resolved_engine(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> list[Resolved]:
    """The Python that is used where `<engine>.python` is null."""
    name, found = engine_name(config, allocation), find_engine(config, allocation, host)
    if (
        name is None
        or not isinstance(found, Installation)
        or getattr(config, name).python is not None
        or not host.is_here
    ):
        return []
    return [Resolved(f"{name}.python", found.python, f"{TITLES[name]} {found.version}: {found.where}")]


def engine_problems(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> list[PlanProblem]:
    name, found = engine_name(config, allocation), find_engine(config, allocation, host)
    if name is None or found is None:
        return []
    why = unsupported_version(name, found.version) if isinstance(found, Installation) else found
    return [PlanProblem(f"{name}.python", why)] if why else []


def head_size_problems(
    config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo
) -> list[PlanProblem]:
    """vLLM would report this only after a minute of loading."""
    if engine_name(config, allocation) != "vllm" or allocation is None or allocation.num_gpus:
        return []
    assert isinstance(config, GRPOConfig)
    shape = shape_of(find_config(config.actor.path, host)[0])
    if shape is None or shape.head_dim in CPU_HEAD_SIZES:
        return []
    sizes = ", ".join(map(str, CPU_HEAD_SIZES))
    reason = f"its attention heads have size {shape.head_dim}, and vLLM on a CPU supports only {sizes}"
    return [PlanProblem("actor.path", f"{config.actor.path}: {reason}; use rollout=sglang or rollout=embedded")]


def update_mode_problems(config: "BaseExperimentConfig", allocation: Allocation | None) -> list[PlanProblem]:
    """The first weight update would report this only after the first step."""
    if not generates(config) or config.rollout.update_mode != "keep":
        return []
    attached = config.rollout.server_type if config.rollout.server_addresses else None
    if "sglang" not in (engine_name(config, allocation), attached):
        return []
    reason = "keep is not supported by SGLang, which does not report the weight version of each token"
    return [PlanProblem("rollout.update_mode", f"{reason}; use abort, wait or auto")]


def engine_info(config: "BaseExperimentConfig", allocation: Allocation | None, host: HostInfo) -> dict[str, Any] | None:
    """What a plan shows of the engine."""
    name, found = engine_name(config, allocation), find_engine(config, allocation, host)
    if name is None or not isinstance(found, Installation):
        return None
    return {"name": name, **found._asdict(), "supported": version_range(name)}


def flag_problems(plan: Plan) -> list[PlanProblem]:
    """Flags that the installed engine's own parser refuses. Checked only at a start, as it takes seconds."""
    engine = plan.servers.get("engine")
    server = next((process for process in plan.processes if process.role == "server"), None)
    if engine is None or server is None:
        return []
    from areal_like.serving.engines.external.flag_check import refused_flags

    if engine["name"] == "vllm":
        from areal_like.serving.engines.vllm.command import FLAG_PARSER as PARSER
    else:
        from areal_like.serving.engines.sglang.command import FLAG_PARSER as PARSER
    words = server.command[server.command.index(ENGINE_SEPARATOR) + 1 :]
    return [PlanProblem(key, reason) for key, reason in refused_flags(PARSER, words[0], words, server.env)]
