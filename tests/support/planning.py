"""Plans for tests: real configurations on invented machines."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from areal_like.config.allocation import Machine
from areal_like.config.load import load
from areal_like.config.loaded import Loaded
from areal_like.serving.engines.external.installations import EngineDistribution, Installation
from launcher.plan.build import build_plan
from launcher.plan.host import Gpu, HostInfo
from launcher.plan.plan import Plan, Process

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
BIG_MODEL = ("actor.path=some/model", "actor.dtype=bfloat16")


def machine_with(num_gpus: int = 0, num_cores: int = 16) -> HostInfo:
    """A machine of this size, all of whose files are in a folder that does not exist."""
    nowhere = Path("/nowhere")
    return HostInfo(
        machine=Machine(num_gpus, num_cores, "made up", ("sglang", "vllm")),
        cores=tuple(range(num_cores)),
        gpus=tuple(Gpu(str(index), "NVIDIA H100 80GB HBM3", 80 * GIB) for index in range(num_gpus)),
        memory_bytes=64 * GIB,
        python="/env/bin/python",
        directory=nowhere,
        hub=nowhere / "hub",
        packages=frozenset({"flash_attn", "tensorboard", "wandb", "swanlab"}),
        find_engine=find_engine,
        why_no_port=lambda _host, _port: "",
        why_no_sandbox=lambda _kind: "",
    )


def find_engine(engine: EngineDistribution, python: str | None, directory: Path, on_gpu: bool) -> Installation:
    """Finds a supported version of each engine everywhere."""
    version = {"vllm": "0.32.0", "sglang": "0.5.21"}[engine.name]
    return Installation(python or f"/engines/{engine.name}/bin/python", version, "made up")


@cache
def loaded(experiment: str, *overrides: str) -> Loaded:
    return load(ROOT / "experiments" / f"{experiment}.yaml", overrides)


def plan_of(experiment: str, *overrides: str, gpus: int = 0, cores: int = 16, **rest: Any) -> Plan:
    """The plan of a shipped experiment on a machine of this size."""
    return build_plan(loaded(experiment, *overrides), host=rest.pop("host", machine_with(gpus, cores)), **rest)


def load_text(text: str, *overrides: str) -> Loaded:
    """A configuration that is written out in a test."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "own.yaml"
        file.write_text(text, encoding="utf-8")
        return load(file, overrides)


def of_role(plan: Plan, role: str) -> list[Process]:
    return [process for process in plan.processes if process.role == role]


def strings(value: Any) -> Iterator[str]:
    """Every text in plain data, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from (name, *strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
