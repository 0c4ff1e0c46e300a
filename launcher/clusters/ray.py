"""Resources that a run requests from a Ray cluster."""

from typing import TYPE_CHECKING, Any

from launcher.plan.plan import Process

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

MB = 1 << 20


def plan_ray(config: "BaseExperimentConfig", processes: tuple[Process, ...]) -> dict[str, Any]:
    """One actor per process; the processes of one planned node form one bundle of a placement group."""
    actors = [_actor(config, process) for process in processes if process.role not in ("guardian", "launcher")]
    bundles: dict[int, dict[str, int]] = {}
    for actor in actors:
        bundle = bundles.setdefault(actor["bundle"], {"CPU": 0, "GPU": 0, "memory": 0})
        for name, amount in actor["resources"].items():
            bundle[name] += amount
    return {
        "type": "ray",
        "address": config.launcher.ray.address or "RAY_ADDRESS; without it a cluster is started here",
        "strategy": "STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK",
        "bundles": [bundles[node] for node in sorted(bundles)],
        "actors": actors,
    }


def _actor(config: "BaseExperimentConfig", process: Process) -> dict[str, Any]:
    limits, units = config.launcher, max(1, len(process.gpus))
    cores, memory = 1, 4096
    if process.role in ("server", "reward"):
        cores, memory = units * limits.inference_server_cpus_per_gpu, units * limits.inference_server_mem_per_gpu
    elif process.role == "trainer":
        cores, memory = units * limits.trainer_cpus_per_gpu, units * limits.trainer_mem_per_gpu
    resources = {"CPU": cores, "GPU": len(process.gpus), "memory": memory * MB}
    return {"process": process.name, "bundle": process.node, "resources": resources}
