"""How one inference server is started: its command line, its environment, and what its engine cannot do."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.plan.plan import PORT, Obstacle

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig


class ServerSpec(NamedTuple):
    """One server: which of them it is, where it listens, and what it may use. `port` is 0 where one is leased."""

    number: int
    host: str
    port: int
    run_dir: str
    model: str
    on_gpu: bool
    tensor: int
    pipeline: int
    cores: tuple[int, ...]
    python: str

    @property
    def port_argument(self) -> str:
        return str(self.port) if self.port else PORT


class ServerStart:
    """`without_effect` names hints that the engine has lost; `obstacles` what it cannot do at all."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.env: dict[str, str] = {}
        self.without_effect: list[str] = []
        self.obstacles: list[Obstacle] = []

    def add(self, name: str, value: Any) -> None:
        self.command += flag(name, value)


def start_server(backend: str, config: "GRPOConfig", spec: ServerSpec) -> ServerStart:
    """The start of one server of this backend."""
    if backend == "vllm":
        from launcher.plan.server_vllm import start_vllm

        return start_vllm(config, spec)
    if backend == "sglang":
        from launcher.plan.server_sglang import start_sglang

        return start_sglang(config, spec)
    if backend == "embedded":
        return start_embedded(spec)
    raise ValueError(f"rollout.backend: no server is called {backend!r}; there are embedded, vllm and sglang")


def start_embedded(spec: ServerSpec) -> ServerStart:
    """Our own server reads everything from the run's config.yaml and publishes the port that it was given."""
    module = ["-m", "areal_like.serving.embedded", "--run-dir", spec.run_dir, "--index", str(spec.number)]
    return ServerStart([spec.python, *module])


def flag(name: str, value: Any) -> list[str]:
    """`flag("max_model_len", 5)` is `--max-model-len 5`; nothing for null, false and ""; true is the bare flag."""
    if value is None or value is False or value == "":
        return []
    word = "--" + name.replace("_", "-")
    if value is True:
        return [word]
    if isinstance(value, dict):
        return [word, json.dumps(value, sort_keys=True)]
    if isinstance(value, list | tuple):
        return [word, *(str(item) for item in value)] if value else []
    return [word, str(value)]


def extra_flags(section: str, extra: dict[str, Any], taken: Iterable[str], start: ServerStart) -> None:
    """Adds a user's own flags last; one that we give ourselves is refused, as two answers to one question."""
    given = {word for word in taken if word.startswith("--")}
    for name, value in extra.items():
        words = flag(name.removeprefix("--"), value)
        if name.removeprefix("--").replace("-", "_") in ("api_key", "admin_api_key", "hf_token"):
            reason = "would stand in the command line for all to read; give it through launcher.env_file"
            start.obstacles.append(Obstacle(f"{section}.extra_args.{name}", reason))
        elif words and words[0] in given:
            reason = f"{words[0]} is given by the plan already; set it where that comes from"
            start.obstacles.append(Obstacle(f"{section}.extra_args.{name}", reason))
        else:
            start.command += words
