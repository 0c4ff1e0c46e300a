"""What built-in rewards and tasks need and this machine lacks: packages, and the key of a judge."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from areal_like.config.benchmarks import BENCHMARKS, benchmark_task, every_reward, task_key
from areal_like.config.built_in import PACKAGES
from areal_like.config.environments import LIST, NamedTask, environment_task
from areal_like.config.experiment import GRPOConfig
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from areal_like.config.sections.reward import NamedReward, configured_rewards
from launcher.plan.host import HostInfo
from launcher.runs.env_file import run_environment

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

JUDGE = "judge"


def missing_packages(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    used = [("reward", f"{reward.section}.name", reward.name) for reward in _rewards(config)]
    task = getattr(config, "task", None)
    used += [("task", "task.name", task.name)] if task is not None and task.name is not None else []
    used += [("task", key, each.name) for key, each in own_tasks(config)]
    for kind, key, name in used:
        module, package = PACKAGES[kind].get(name, ("", ""))
        if module and module not in here.packages:
            needs = f"{name} needs the package {package}, which is not installed"
            yield Problem(key, f"{needs}; {pip_command(package)} installs it")


def own_tasks(config: "BaseExperimentConfig") -> Iterator[tuple[str, NamedTask]]:
    """Those of environments and benchmarks, with their keys."""
    trained = config.environments.train if isinstance(config, GRPOConfig) else []
    found = [(task_key(f"{LIST}.{index}", each), environment_task(each)) for index, each in enumerate(trained)]
    found += [
        (task_key(f"{BENCHMARKS}.{index}", each), benchmark_task(each))
        for index, each in enumerate(config.evaluator.benchmarks)
    ]
    return ((key, task) for key, task in found if task is not None)


def missing_judge_keys(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """The key comes from the environment or from `launcher.env_file`."""
    for reward in _rewards(config):
        name = reward.args.get("api_key_var") if reward.name == JUDGE else None
        if name and not run_environment(config, here.directory).get(name):
            reason = f"the judge needs an API key in the variable {name}, which is not set"
            remedy = "export it, name it in a file of launcher.env_file, or name another variable"
            yield Problem(f"{reward.section}.args.api_key_var", f"{reason}; {remedy}")


def judge_address_problems(config: "BaseExperimentConfig") -> Iterator[Problem]:
    for reward in _rewards(config):
        if reward.name != JUDGE:
            continue
        url = urlsplit(str(reward.args["url"]))
        key = f"{reward.section}.args.url"
        if url.scheme not in ("http", "https") or not url.hostname:
            yield Problem(key, "is not an address; write it with http or https, such as https://api.openai.com/v1")
        elif url.username or url.password:
            yield Problem(key, "contains credentials, which config.yaml would hold; name a variable in api_key_var")


def _rewards(config: "BaseExperimentConfig") -> list[NamedReward]:
    """Also those of benchmarks."""
    if not isinstance(config, GRPOConfig):
        return []
    return [
        each._replace(section=f"{place}{each.section}")
        for place, reward in every_reward(config)
        for each in configured_rewards(reward)
    ]
