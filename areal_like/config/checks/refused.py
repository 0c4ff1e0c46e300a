"""Keys of AReaL that compose and are refused at a start: nothing here could honour them."""

from types import MappingProxyType

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
        "sglang.torchao_config": "SGLang no longer quantizes with torchao; leave it out, or give another kind by "
        "sglang.extra_args",
    }
)
"""Key -> why it is refused, and what to write instead."""


def refusal(path: str) -> str | None:
    """Why a value at this path, or at an entry of a map there, is refused; None where it is not."""
    while path and path not in REFUSED:
        path = path.rpartition(".")[0]
    return REFUSED.get(path)
