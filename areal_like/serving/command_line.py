"""How an inference server of others is started: its command line, its environment, and what it cannot do."""

import json
from typing import Any, NamedTuple

from areal_like.process.identity import PORT

SECRET_FLAGS = ("api_key", "admin_api_key", "hf_token")
"""Flags whose value all users of the machine could read in the list of processes."""


class ServerSite(NamedTuple):
    """One server: which of them it is, where it listens, and what it may use. `port` is 0 where one is leased,
    `memory_bytes` what the machine has, as far as it is known."""

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

    @property
    def port_argument(self) -> str:
        return str(self.port) if self.port else PORT


class ServerCommand:
    """`without_effect` names hints that the engine has lost, `notes` what was decided for the user and why, and
    `obstacles` what it cannot do at all; each of these two as a key and the reason."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.env: dict[str, str] = {}
        self.without_effect: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self.problems: list[tuple[str, str]] = []

    def add(self, name: str, value: Any) -> None:
        self.command += flag(name, value)


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


def boolean_flag(name: str, value: bool) -> str:
    """For flags that the engine sets itself where they are absent: false is said too."""
    return flag(name if value else f"no_{name}", True)[0]


def add_extra_flags(section: str, extra: dict[str, Any], start: ServerCommand, two_way: bool = False) -> None:
    """Adds a user's own flags last; one that we give ourselves is refused, as two answers to one question. `two_way`:
    false is said as `--no-...`."""
    given = {word for word in start.command if word.startswith("--")}
    for name, value in extra.items():
        bare = name.removeprefix("--").replace("-", "_")
        words = [boolean_flag(bare, False)] if value is False and two_way else flag(bare, value)
        taken = given & {boolean_flag(bare, value) for value in (True, False)}
        if bare in SECRET_FLAGS:
            reason = "would stand in the command line for all to read; give it through launcher.env_file"
            start.problems.append((f"{section}.extra_args.{name}", reason))
        elif words and taken:
            reason = f"{min(taken)} is given by the plan already; set it where that comes from"
            start.problems.append((f"{section}.extra_args.{name}", reason))
        else:
            start.command += words
