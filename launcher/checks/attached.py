"""Servers that run already: their addresses, and the key that they want."""

import re
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates
from launcher.plan.host import HostInfo
from launcher.plan.plan import PlanProblem
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "rollout.server_addresses"
ADDRESS = re.compile(r"(?:http://)?(?P<account>[^/@]*@)?(?:\[[0-9a-fA-F:]+\]|[^/:@\s]+):\d+(?:/v1)?/?")
HTTPS = "https://"


def address_problems(config: "BaseExperimentConfig") -> list[PlanProblem]:
    """What is wrong with the addresses themselves. An address is part of a command line, which all can read."""
    if not generates(config):
        return []
    found, seen = [], set[str]()
    for number, address in enumerate(config.rollout.server_addresses):
        match, key = ADDRESS.fullmatch(address.strip()), f"{KEY}[{number}]"
        if address.strip().startswith(HTTPS):
            found.append(
                PlanProblem(key, "https is not spoken here; give host:port of a plain one, through a tunnel say")
            )
        elif match is None:
            found.append(PlanProblem(key, "is no address; write host:port, such as 127.0.0.1:8000"))
        elif match["account"]:
            reason = (
                f"has an account in it, for all to read; put the key into the variable {config.rollout.api_key_var}"
            )
            found.append(PlanProblem(key, f"{reason} (rollout.api_key_var)"))
        elif (server := address.strip().removeprefix("http://").partition("/")[0]) in seen:
            found.append(PlanProblem(key, "stands there twice; one server cannot be two of a run"))
        else:
            seen.add(server)
    return found


def missing_api_key(config: "BaseExperimentConfig", host: HostInfo) -> list[PlanProblem]:
    """It comes from the environment, or from a file of variables, and stands nowhere else."""
    if not generates(config) or not config.rollout.server_addresses:
        return []
    name = config.rollout.api_key_var
    if run_environment(config, host.directory).get(name):
        return []
    reason = f"the variable {name} is not set, which is to hold the key of the servers at {KEY}"
    way = f"export {name}=... (the key that they were started with), or name the variable that has it"
    return [PlanProblem("rollout.api_key_var", f"{reason}; {way}")]
