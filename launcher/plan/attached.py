"""Servers that run already: their addresses, and the key that they want."""

import re
from typing import TYPE_CHECKING

from areal_like.config.allocation.experiment import generates
from launcher.env_file import variables
from launcher.plan.host import Host
from launcher.plan.plan import Obstacle

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

KEY = "rollout.server_addresses"
ADDRESS = re.compile(r"(?:http://)?(?P<account>[^/@]*@)?(?:\[[0-9a-fA-F:]+\]|[^/:@\s]+):\d+(?:/v1)?/?")
SECURE = "https://"


def addresses_obstacles(config: "BaseExperimentConfig") -> list[Obstacle]:
    """What is wrong with the addresses themselves. An address is part of a command line, which all can read."""
    if not generates(config):
        return []
    found, seen = [], set[str]()
    for number, address in enumerate(config.rollout.server_addresses):
        match, key = ADDRESS.fullmatch(address.strip()), f"{KEY}[{number}]"
        if address.strip().startswith(SECURE):
            found.append(Obstacle(key, "https is not spoken here; give host:port of a plain one, through a tunnel say"))
        elif match is None:
            found.append(Obstacle(key, "is no address; write host:port, such as 127.0.0.1:8000"))
        elif match["account"]:
            reason = (
                f"has an account in it, for all to read; put the key into the variable {config.rollout.api_key_var}"
            )
            found.append(Obstacle(key, f"{reason} (rollout.api_key_var)"))
        elif (server := address.strip().removeprefix("http://").partition("/")[0]) in seen:
            found.append(Obstacle(key, "stands there twice; one server cannot be two of a run"))
        else:
            seen.add(server)
    return found


def lacks_key(config: "BaseExperimentConfig", host: Host) -> list[Obstacle]:
    """It comes from the environment, or from a file of variables, and stands nowhere else."""
    if not generates(config) or not config.rollout.server_addresses:
        return []
    name = config.rollout.api_key_var
    if variables(config, host.directory).get(name):
        return []
    reason = f"the variable {name} is not set, which is to hold the key of the servers at {KEY}"
    way = f"export {name}=... (the key that they were started with), or name the variable that has it"
    return [Obstacle("rollout.api_key_var", f"{reason}; {way}")]
