"""Keys of AReaL that compose and are refused at a start: nothing here could honour them."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from areal_like.config.engines import engines
from areal_like.config.problems import Problem

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

SCHEMA_ORIGINS = ("default", "group of the schema")

_NO_SERVICE = "no such service exists here; a reward is a function: reward.name, reward.args"
REFUSED = MappingProxyType(
    {
        "scheduler.endpoint": "there is no scheduler service; where processes run is cluster.type and allocation_mode",
        "scheduler.deploy_mode": "servers and trainers are placed by allocation_mode",
        "scheduler.functioncall_service_domain": _NO_SERVICE,
        "scheduler.reward_functioncall_config": _NO_SERVICE,
        "scheduler.reward_model_path": "reward.name=model serves the reward model in reward.args.path",
        "scheduler.reward_model_service_url": "a reward function may call one: reward.name, reward.args; "
        "reward.name=model serves a model beside the run",
    }
)
"""Key -> why it is refused, and what to write instead. `EngineKeys.refused` has those of an engine."""


def refusal(path: str) -> str | None:
    """Why a value at this path, or at an entry of a map there, is refused; None where it is not."""
    refused = all_refused()
    while path and path not in refused:
        path = path.rpartition(".")[0]
    return refused.get(path)


def all_refused() -> dict[str, str]:
    """With those of the engines."""
    return dict(REFUSED) | {key: reason for keys in engines() for key, reason in keys.refused.items()}


def refused_keys(loaded: "Loaded") -> Iterator[Problem]:
    """Such keys where the user sets one."""
    for path in loaded.changed():
        if loaded.origin(path).kind not in SCHEMA_ORIGINS and (reason := refusal(path)) is not None:
            yield Problem(path, reason)
