"""Checks of attached servers (`rollout.server_addresses`): their addresses and the API key."""

import re
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates
from areal_like.config.problems import Problem
from launcher.plan.host import HostInfo
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "rollout.server_addresses"
ADDRESS = re.compile(r"(?:http://)?(?P<account>[^/@]*@)?(?:\[[0-9a-fA-F:]+\]|[^/:@\s]+):\d+(?:/v1)?/?")
HTTPS = "https://"


def address_problems(config: "BaseExperimentConfig") -> list[Problem]:
    """Invalid or repeated addresses, and addresses with credentials, which would be visible in command lines."""
    if not generates(config):
        return []
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


def missing_api_key(config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    """The key comes from the environment or from `launcher.env_file`."""
    if not generates(config) or not config.rollout.server_addresses:
        return []
    name = config.rollout.api_key_var
    if run_environment(config, here.directory).get(name):
        return []
    reason = f"the variable {name}, which holds the API key of the servers at {KEY}, is not set"
    remedy = f"export {name}=... (the key that they were started with), or name another variable"
    return [Problem("rollout.api_key_var", f"{reason}; {remedy}")]
