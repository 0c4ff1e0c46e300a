"""Plans for another machine (`--for gpus=8,cores=96,memory=1T`), without inspecting this one."""

import re
import sys
from pathlib import Path
from typing import Any

from areal_like.config.allocation import Machine
from areal_like.config.engines import gpu_engines
from areal_like.config.number_text import size_text
from areal_like.config.problems import ConfigError, Problem, plural
from areal_like.config.suggest import nearest
from areal_like.models import hub_cache
from areal_like.models.model_shape import shape_of
from areal_like.serving.engines.external.installations import EngineDistribution, Installation
from launcher.plan.host import Gpu, HostInfo, local_host
from launcher.plan.model_config import find_model_config, read_config

FOR, MODEL_CONFIG = "--for", "--model-config"
PLACE = "that machine"
COUNT = re.compile(r"\d{1,6}")
SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
UNITS = {unit: 1 << power for unit, power in zip("KMGT", (10, 20, 30, 40), strict=True)}
PARTS = {
    "gpus": "GPUs of a node (0: none)",
    "cores": "cores of a node",
    "memory": "main memory of a node, such as 512G or 1T",
    "nodes": "number of nodes",
    "gpu_memory": "memory of one GPU, such as 80G",
}
MAXIMA = {"gpus": 64, "cores": 4096, "nodes": 1024}
EXAMPLE = "gpus=8,cores=96,memory=1T,gpu_memory=80G,nodes=2"


def parse_machine(text: str) -> tuple[HostInfo, int | None]:
    """The machine, and the number of nodes if given. Raises ConfigError with all problems."""
    values, problems = _values(text)
    if not problems and "cores" not in values:
        problems.append(f"cores is missing; add it, as in {FOR} {EXAMPLE}")
    if not problems and "gpu_memory" in values and not values.get("gpus"):
        problems.append("gpu_memory is the memory of one GPU, and there is none; add gpus=")
    if problems:
        raise ConfigError([Problem(FOR, problem) for problem in problems])
    num_gpus, num_cores = values.get("gpus", 0), values["cores"]
    host = HostInfo(
        machine=Machine(num_gpus, num_cores, FOR, tuple(keys.name for keys in gpu_engines()), PLACE),
        cores=tuple(range(num_cores)),
        gpus=tuple(Gpu(str(index), memory_bytes=values.get("gpu_memory")) for index in range(num_gpus)),
        memory_bytes=values.get("memory"),
        python=Path(sys.executable).name,
        directory=Path.cwd(),
        hub=hub_cache(),
        find_engine=_assume_installed,
    )
    return host, values.get("nodes")


def _values(text: str) -> tuple[dict[str, int], list[str]]:
    values: dict[str, int] = {}
    problems: list[str] = []
    for part in text.split(","):
        name, has_value, value = (each.strip() for each in part.partition("="))
        if name not in PARTS:
            guess = nearest(name, list(PARTS))
            hint = f"did you mean {guess[0]}? " if guess else ""
            problems.append(f"{name!r} is unknown; {hint}Known are {', '.join(PARTS)}")
        elif not has_value:
            problems.append(f"{name} has no value; write {name}=..., the {PARTS[name]}")
        elif name in values:
            problems.append(f"{name} is given twice; keep one")
        else:
            size = _size(value) if name.endswith("memory") else _count(name, value)
            values[name] = size or 0
            if size is None:
                problems.append(f"{name}={value} is not valid; {_expected(name)}")
    return values, problems


def _count(name: str, value: str) -> int | None:
    least = 0 if name == "gpus" else 1
    return int(value) if COUNT.fullmatch(value) and least <= int(value) <= MAXIMA[name] else None


def _size(value: str) -> int | None:
    match = SIZE.fullmatch(value)
    return int(float(match[1]) * UNITS[match[2].upper()]) or None if match else None


def _expected(name: str) -> str:
    if name.endswith("memory"):
        return f"it is the {PARTS[name]}"
    return f"it is the {PARTS[name]}, from {0 if name == 'gpus' else 1} to {MAXIMA[name]}"


def _assume_installed(engine: EngineDistribution, python: str | None, _directory: Path, _on_gpu: bool) -> Installation:
    first = ".".join(map(str, engine.supported[0]))
    return Installation(python or f"<{engine.key}>", first, "assumed to be installed on that machine")


def machine_text(machine: dict[str, Any]) -> str:
    """The machine of a plan as text."""
    gpu_memory, memory = machine["gpu_memory_bytes"], machine["memory_bytes"]
    each = f" of {size_text(gpu_memory)}" if gpu_memory else ""
    words = [f"{plural(machine['gpus'], 'GPU')}{each}" if machine["gpus"] else "no GPU"]
    words += [plural(machine["cores"], "core"), f"{size_text(memory)} of memory" if memory else "memory not given"]
    return f"a machine with {', '.join(words)}"


def with_model_config(host: HostInfo, path: str, config: Any) -> HostInfo:
    """`path`: the config.json of the trained model, or a model on this machine: a folder, a built-in model, or a name
    in the cache."""
    file = host.directory / Path(path).expanduser()
    content, where = (read_config(file), str(file)) if file.is_file() else find_model_config(path, host)
    if content is None:
        reason = "is not a JSON object" if file.is_file() else f"does not exist ({where})"
        raise ConfigError([Problem(MODEL_CONFIG, f"{path} {reason}; name a model's config.json, or its folder")])
    if shape_of(content) is None:
        reason = f"{path} does not describe a model of a known type; name the config.json of a decoder"
        raise ConfigError([Problem(MODEL_CONFIG, reason)])
    trained = config.actor if hasattr(config, "actor") else config.model
    return host._replace(configs={trained.path: Path(where)})


class TargetMachine:
    """Machine and model given by the flags of a dry run."""

    def __init__(self, machine: str | None, model_config: str | None) -> None:
        self._host: HostInfo | None = None
        self._nodes: int | None = None
        if machine is not None:
            self._host, self._nodes = parse_machine(machine)
        self._model_config = model_config

    @property
    def machine(self) -> Machine | None:
        """The described machine, for composing a configuration."""
        return None if self._host is None else self._host.machine

    @property
    def overrides(self) -> list[str]:
        """Overrides that follow from the flags."""
        return [] if self._nodes is None else [f"cluster.n_nodes={self._nodes}"]

    def host(self, config: Any) -> HostInfo | None:
        """None: this machine. Raises ConfigError where the configuration sets another number of nodes."""
        nodes = config.cluster.n_nodes
        if self._nodes is not None and nodes != self._nodes:
            reason = f"nodes={self._nodes}, and cluster.n_nodes={nodes}; leave one of them out"
            raise ConfigError([Problem(FOR, reason)])
        if self._model_config is None:
            return self._host
        return with_model_config(self._host or local_host(), self._model_config, config)
