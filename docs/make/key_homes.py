"""The place of each key of AReaL in our tree, by walking the types of its classes."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SEED_KEYS_PATH = Path(__file__).with_name("seed_keys.json")
"""The keys of AReaL, prime-rl and its hosted training, with types and defaults, as their documentation lists them."""

OUR_CLASS = {
    "BaseExperiment Configuration": "BaseExperimentConfig",
    "GRPO Configuration": "GRPOConfig",
    "PPO Configuration": "PPOConfig",
    "RW Configuration": "RWConfig",
    "SFT Configuration": "SFTConfig",
    "FSDPEngine Configuration": "FSDPEngineConfig",
    "FSDPWrapPolicy": "FSDPWrapPolicy",
    "MicroBatch Specification": "MicroBatchSpec",
    "Norm Configuration": "NormConfig",
    "Optimizer Configuration": "OptimizerConfig",
    "PPOActor Configuration": "PPOActorConfig",
    "PPOCritic Configuration": "PPOCriticConfig",
    "TrainEngine Configuration": "TrainEngineConfig",
    "GenerationHyperparameters": "GenerationHyperparameters",
    "InferenceEngine Configuration": "InferenceEngineConfig",
    "SGLang Configuration": "SGLangConfig",
    "vLLM Configuration": "vLLMConfig",
    "Dataset Configuration": "DatasetConfig",
    "Cluster Specification Configuration": "ClusterSpecConfig",
    "Launcher Configuration": "LauncherConfig",
    "NameResolve Configuration": "NameResolveConfig",
    "SlurmLauncher Configuration": "SlurmLauncherConfig",
    "Evaluator Configuration": "EvaluatorConfig",
    "Recover Configuration": "RecoverConfig",
    "Saver Configuration": "SaverConfig",
    "StatsLogger Configuration": "StatsLoggerConfig",
    "Swanlab Configuration": "SwanlabConfig",
    "TensorBoard Configuration": "TensorBoardConfig",
    "WandB Configuration": "WandBConfig",
    "Scheduler Configuration": "SchedulerConfig",
}
"""Title of a class in the seed keys -> our dataclass. The types of the seed keys use the same class names."""

SEED_ROOTS = {
    "grpo": "GRPO Configuration",
    "ppo": "PPO Configuration",
    "sft": "SFT Configuration",
    "reward_model": "RW Configuration",
}
SEED_BASE = "BaseExperiment Configuration"

_TITLE_OF_TYPE = {our_class: title for title, our_class in OUR_CLASS.items()}


class Home(NamedTuple):
    """A place in the tree (items of a list of sections as `a.b[].c`), and the kinds of experiment that have it."""

    path: str
    experiments: tuple[str, ...] = ()


@cache
def seed_keys() -> dict[str, Any]:
    """The seed keys as they are on file."""
    seed: dict[str, Any] = json.loads(SEED_KEYS_PATH.read_text(encoding="utf-8"))
    return seed


def seed_class(seed_type: str) -> str | None:
    """Title of the class that a seed type names (`NormConfig | None` -> "Norm Configuration"), None for a value."""
    return _TITLE_OF_TYPE.get(seed_type.removesuffix(" | None"))


@cache
def areal_homes() -> dict[tuple[str, str], tuple[Home, ...]]:
    """(title of the class, key) -> every place where the class's own types put that key."""
    classes = seed_keys()["areal"]
    places: dict[tuple[str, str], dict[str, list[str]]] = {}

    def walk(title: str, prefix: str, experiment: str) -> None:
        for name, row in classes[title].items():
            path = prefix + name
            places.setdefault((title, name), {}).setdefault(path, []).append(experiment)
            below = seed_class(row["type"])
            if below is not None:
                walk(below, path + ".", experiment)

    for experiment, title in SEED_ROOTS.items():
        walk(title, "", experiment)
        for name in classes[SEED_BASE]:
            places.setdefault((SEED_BASE, name), {}).setdefault(name, []).append(experiment)
    return {
        origin: tuple(Home(path, tuple(experiments)) for path, experiments in by_path.items())
        for origin, by_path in places.items()
    }


PRIME_EXPERIMENTS = ("grpo", "ppo")
"""The kinds of experiment that files of prime-rl describe."""
VERBS = {
    "init": "python -m launcher init",
    "run @config.toml": "python -m launcher run",
    "list": "python -m launcher list",
    "logs ID": "python -m launcher logs",
    "stop ID": "python -m launcher stop",
    "delete ID": "python -m launcher delete",
    "models": "python -m launcher models",
}
DIALECT = "the dialect for TOML files"
"""Home of every rule about how those files and their flags are read."""
