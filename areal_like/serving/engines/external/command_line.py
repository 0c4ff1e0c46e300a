"""The command line of an inference server, its environment, and the settings that it does not support."""

import json
from typing import Any, NamedTuple

from areal_like.process.identity import PORT

SECRET_FLAGS = ("api_key", "admin_api_key", "hf_token")
"""Flags with secrets: all users of the machine could read them in the list of processes."""


class ServerSite(NamedTuple):
    """Number, address and resources of one server. `port` is 0 if one is leased; `memory_bytes` is the machine's memory
    or None."""

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
    memory_bytes: int | None = None
    head_dim: int | None = None
    """Size of the model's attention heads, if known."""

    @property
    def port_argument(self) -> str:
        return str(self.port) if self.port else PORT


class ServerCommand:
    """`without_effect`: keys that the engine no longer supports. `notes`: keys decided for the user, with the reason.
    `problems`: keys that the engine cannot fulfil, with the reason."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.env: dict[str, str] = {}
        self.without_effect: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self.problems: list[tuple[str, str]] = []

    def add(self, name: str, value: Any) -> None:
        self.command += flag(name, value)


def flag(name: str, value: Any) -> list[str]:
    """`flag("max_model_len", 5)` is `--max-model-len 5`; empty for null, false and ""; true gives the bare flag."""
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


def boolean_flag(name: str, value: bool) -> str:
    """For flags that the engine sets by itself if they are absent: false becomes `--no-...`."""
    return flag(name if value else f"no_{name}", True)[0]


def add_extra_flags(section: str, extra: dict[str, Any], start: ServerCommand, two_way: bool = False) -> None:
    """Adds the user's own flags last; one that is given already is refused. `two_way`: false becomes `--no-...`."""
    given = {word for word in start.command if word.startswith("--")}
    for name, value in extra.items():
        bare = name.removeprefix("--").replace("-", "_")
        words = [boolean_flag(bare, False)] if value is False and two_way else flag(bare, value)
        taken = given & {boolean_flag(bare, value) for value in (True, False)}
        if bare in SECRET_FLAGS:
            reason = "would be readable in the command line; set it with launcher.env_file"
            start.problems.append((f"{section}.extra_args.{name}", reason))
        elif words and taken:
            reason = f"{min(taken)} is set by the plan already; set the key that it comes from"
            start.problems.append((f"{section}.extra_args.{name}", reason))
        else:
            start.command += words
