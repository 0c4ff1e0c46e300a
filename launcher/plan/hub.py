"""Models by their names on the Hub: each is resolved once, to a snapshot in the local cache, for all roles of a run."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation.models import generates, trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.config.interpolation import references_in
from areal_like.models import BUILT_IN, snapshots
from launcher.plan.host import HostInfo
from launcher.plan.plan import PlanProblem, Resolved
from launcher.plan.reward_model import KEY as REWARD
from launcher.plan.reward_model import has_reward_model, reward_model_source

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
TOKENIZER = "tokenizer_path"
SERVED = {"embedded": "model_path", "vllm": "model", "sglang": "model_path"}
TOKENIZER_FILE, INDEX = "tokenizer.json", "model.safetensors.index.json"
SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class ModelReference(NamedTuple):
    """A model that a run names. `weights`: whether its weights are needed, and not only its configuration."""

    key: str
    name: str
    weights: bool


def hub_models(config: "BaseExperimentConfig", host: HostInfo) -> dict[str, list[ModelReference]]:
    """By name: all that are names on the Hub, and neither folders nor models of the package."""
    models = trained_models(config)
    said = [ModelReference(f"{name}.path", engine.path, not engine.init_from_scratch) for name, engine in models]
    if generates(config):
        served = ((f"{engine}.{name}", getattr(getattr(config, engine), name)) for engine, name in SERVED.items())
        said += [ModelReference(key, path, not config.actor.init_from_scratch) for key, path in served]
    said.append(ModelReference(TOKENIZER, getattr(config, TOKENIZER, ""), False))
    if isinstance(config, GRPOConfig) and has_reward_model(config):
        found = reward_model_source(config, host)
        said += [ModelReference(REWARD, found.path, True)] if found is not None and not found.reason else []
    by_name: dict[str, list[ModelReference]] = {}
    for want in said:
        if is_model_name(want.name, host):
            by_name.setdefault(want.name, []).append(want)
    return by_name


def is_model_name(path: str, host: HostInfo) -> bool:
    """Whether it can only be a model's name on the Hub."""
    if path.startswith(BUILT_IN) or NAME.fullmatch(path) is None:
        return False
    return not (host.directory / path).is_dir()


def cached_snapshot(wants: Sequence[ModelReference], host: HostInfo) -> Path | None:
    """The snapshot in the cache that has what all of them want of one model: a download may have stopped on the way."""
    return next((folder for folder in snapshots(wants[0].name, host.hub) if not _missing_file(folder, wants)), None)


def resolved_models(loaded: "Loaded", host: HostInfo) -> list[Resolved]:
    """Those that are in the cache, under each key that is not a reference to another: references follow by
    themselves."""
    found: list[Resolved] = []
    if not host.is_here:
        return found
    for name, wants in hub_models(loaded.config, host).items():
        folder = cached_snapshot(wants, host)
        for want in wants if folder is not None else ():
            if not references_in(loaded.get_raw(want.key)):
                assert folder is not None
                reason = f"{name} at revision {folder.name[:12]}, in the Hugging Face cache; the same for all roles"
                found.append(Resolved(want.key, str(folder.absolute()), reason))
    return found


def missing_models(config: "BaseExperimentConfig", host: HostInfo) -> list[list[ModelReference]]:
    """What would have to be fetched, model by model."""
    return [wants for wants in hub_models(config, host).values() if cached_snapshot(wants, host) is None]


def offline_model_problems(config: "BaseExperimentConfig", host: HostInfo) -> list[PlanProblem]:
    """Models that are not here, where the network is not to be used either."""
    if (switch := offline_switch()) is None:
        return []
    why = f"{switch} is set, so that nothing is fetched"
    return [PlanProblem(wants[0].key, missing_model_text(wants, host, why)) for wants in missing_models(config, host)]


def offline_switch() -> str | None:
    """The variable that keeps this user off the network, if one does."""
    return next((name for name in SWITCHES if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)


def missing_model_text(wants: Sequence[ModelReference], host: HostInfo, why: str) -> str:
    name, there = wants[0].name, snapshots(wants[0].name, host.hub)
    lack = f"{name} is neither a folder (as seen from {host.directory.absolute()}) nor in the Hugging Face cache"
    if there:
        lack = f"of {name} only a part ({_missing_file(there[0], wants)}) is in the Hugging Face cache"
    command = f"python -m areal_like.models.fetch {name}"
    return f"{lack} ({host.hub}), and {why}; `{command}` brings it there where there is a network, or name a folder"


def model_download_warnings(config: "BaseExperimentConfig", host: HostInfo) -> Iterator[str]:
    """For the plan: what a start would do first."""
    if host.is_here and not offline_model_problems(config, host):
        for wants in missing_models(config, host):
            key, name = wants[0].key, wants[0].name
            yield f"{key}: {name} is not in the Hugging Face cache ({host.hub}); it would be downloaded at the start"


def _missing_file(snapshot: Path, wants: Sequence[ModelReference]) -> str:
    """The first file that is not there."""
    needed = [TOKENIZER_FILE if want.key == TOKENIZER else "config.json" for want in wants]
    if any(want.weights for want in wants):
        if (snapshot / INDEX).is_file():
            files = json.loads((snapshot / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
            needed += sorted(set(files))
        elif not any(snapshot.glob("*.bin")):
            needed.append("model.safetensors")
    return next((f"{file} is missing" for file in needed if not (snapshot / file).exists()), "")
