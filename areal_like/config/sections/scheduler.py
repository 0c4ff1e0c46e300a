"""Services around AReaL that do not exist here."""

from typing import Any

from areal_like.config.fields import config, key


@config
class SchedulerConfig:
    """Services that AReaL can call. There are none here: its files load, but a start with one of these keys changed is
    refused."""

    endpoint: str = key("http://localhost:8081")
    """URL of a scheduler service. Here `cluster.type` and `allocation_mode` say where processes run."""

    deploy_mode: str = key("separation")
    """Whether inference and training have GPUs of their own. Here `allocation_mode` says so."""

    functioncall_service_domain: str = key("http://localhost:8080")
    """URL of a service that runs code for rewards. Here a reward is a function, named by `reward.name`."""

    reward_functioncall_config: dict[str, Any] = key({})
    """Options sent along with each call of that service. Here they are `reward.args`."""

    reward_model_path: str = key("")
    """Model that such a service scores answers with. Here a reward function may load one."""

    reward_model_service_url: str = key("http://localhost:30000/classify")
    """URL of a service that scores answers. Here a reward function may call one."""
