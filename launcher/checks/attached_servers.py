"""Checks of attached servers (`rollout.server_addresses`): their addresses and the API key."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from areal_like.config.allocation.models import generates, uses_api
from areal_like.config.built_in import BUILT_IN
from areal_like.config.problems import Problem
from launcher.plan.host import HostInfo
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "rollout.server_addresses"
ADDRESS = re.compile(r"(?:http://)?(?P<account>[^/@]*@)?(?:\[[0-9a-fA-F:]+\]|[^/:@\s]+):\d+(?:/v1)?/?")
HTTPS = "https://"
SINGLE_TURN = "single_turn"


def address_problems(config: "BaseExperimentConfig") -> list[Problem]:
    """Invalid or repeated addresses, and addresses with credentials, which would be visible in command lines."""
    if not generates(config):
        return []
    if uses_api(config):
        return [*_service_problems(config.rollout.server_addresses), *_conversation_problems(config.workflow.name)]
    problems, seen = [], set[str]()
    for number, address in enumerate(config.rollout.server_addresses):
        match, key = ADDRESS.fullmatch(address.strip()), f"{KEY}[{number}]"
        if address.strip().startswith(HTTPS):
            problems.append(Problem(key, "https is not supported; give host:port of an http server"))
        elif match is None:
            problems.append(Problem(key, "is not an address; write host:port, such as 127.0.0.1:8000"))
        elif match["account"]:
            reason = f"contains credentials, visible to all users; use the variable {config.rollout.api_key_var}"
            problems.append(Problem(key, f"{reason} (rollout.api_key_var)"))
        elif (server := address.strip().removeprefix("http://").partition("/")[0]) in seen:
            problems.append(Problem(key, "is given twice; remove one"))
        else:
            seen.add(server)
    return problems


def _service_problems(addresses: list[str]) -> Iterator[Problem]:
    """Of an OpenAI-compatible service."""
    if not addresses:
        yield Problem(KEY, "is empty, and server_type=openai asks a service; give its URL")
    for number, address in enumerate(addresses):
        url, key = urlsplit(address.strip()), f"{KEY}[{number}]"
        if url.scheme not in ("http", "https") or not url.hostname:
            yield Problem(key, "is not an address; write it with http or https, such as https://api.openai.com/v1")
        elif url.username or url.password:
            yield Problem(key, "contains credentials, which config.yaml would hold; use rollout.api_key_var")
    if len(addresses) > 1:
        yield Problem(KEY, "an openai service has one address")


def _conversation_problems(workflow: str | None) -> Iterator[Problem]:
    """Their turns extend tokens, which a service neither shows nor takes."""
    if workflow in BUILT_IN["workflow"] and workflow != SINGLE_TURN:
        message = f"{workflow} extends the tokens of its turns, which a service does not show; use {SINGLE_TURN}"
        yield Problem("workflow.name", message)


def missing_api_key(config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    """The key comes from the environment or from `launcher.env_file`."""
    if not generates(config) or not config.rollout.server_addresses:
        return []
    name = config.rollout.api_key_var
    if run_environment(config, here.directory).get(name):
        return []
    if uses_api(config):
        reason = f"the service needs an API key in the variable {name}, which is not set"
        remedy = "export it, name it in a file of launcher.env_file, or name another variable"
        return [Problem("rollout.api_key_var", f"{reason}; {remedy}")]
    reason = f"the variable {name}, which holds the API key of the servers at {KEY}, is not set"
    remedy = f"export {name}=... (the key that they were started with), or name another variable"
    return [Problem("rollout.api_key_var", f"{reason}; {remedy}")]
