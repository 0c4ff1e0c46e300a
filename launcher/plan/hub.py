"""Models named by their Hub name: each is resolved once, to a snapshot in the local cache, for all roles of a run."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation.models import generates, trained_models, uses_api
from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engines
from areal_like.config.experiment import GRPOConfig
from areal_like.config.interpolation import references_in
from areal_like.config.problems import Problem
from areal_like.models import BUILT_IN, snapshots
from launcher.plan.host import HostInfo
from launcher.plan.plan import Resolved
from launcher.plan.reward_model import has_reward_model, reward_model_source

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
TOKENIZER = "tokenizer_path"
TOKENIZER_FILE, INDEX = "tokenizer.json", "model.safetensors.index.json"
SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class ModelReference(NamedTuple):
    """A model that a key names. `weights`: whether its weights are needed, not only its configuration."""

    key: str
    name: str
    weights: bool


def hub_models(config: "BaseExperimentConfig", host: HostInfo) -> dict[str, list[ModelReference]]:
    """By name: all models on the Hub, without folders and built-in models."""
    if uses_api(config):
        return {}
    models = trained_models(config)
    references = [ModelReference(f"{name}.path", engine.path, not engine.init_from_scratch) for name, engine in models]
    if generates(config):
        served = ((keys.model_key, value_of(config, keys.model_key)) for keys in engines())
        references += [ModelReference(key, path, not config.actor.init_from_scratch) for key, path in served]
    references.append(ModelReference(TOKENIZER, getattr(config, TOKENIZER, ""), False))
    if isinstance(config, GRPOConfig) and has_reward_model(config):
        source = reward_model_source(config, host)
        references += (
            [ModelReference(source.key, source.path, True)]
            if source is not None and not source.reason and not source.problem
            else []
        )
    by_name: dict[str, list[ModelReference]] = {}
    for reference in references:
        if is_model_name(reference.name, host):
            by_name.setdefault(reference.name, []).append(reference)
    return by_name


def is_model_name(path: str, host: HostInfo) -> bool:
    """Whether a path can only be a model's name on the Hub."""
    if path.startswith(BUILT_IN) or NAME.fullmatch(path) is None:
        return False
    return not (host.directory / path).is_dir()


def cached_snapshot(references: Sequence[ModelReference], host: HostInfo) -> Path | None:
    """The cached snapshot that has all required files of one model; a download may be incomplete."""
    return next(
        (folder for folder in snapshots(references[0].name, host.hub) if not _missing_file(folder, references)), None
    )


def resolved_models(loaded: "Loaded", host: HostInfo) -> list[Resolved]:
    """The cached models, for each key that is not itself a reference to another key."""
    resolved: list[Resolved] = []
    if not host.is_here:
        return resolved
    for name, references in hub_models(loaded.config, host).items():
        folder = cached_snapshot(references, host)
        for reference in references if folder is not None else ():
            if not references_in(loaded.get_raw(reference.key)):
                assert folder is not None
                reason = f"{name} at revision {folder.name[:12]}, in the Hugging Face cache; the same for all roles"
                resolved.append(Resolved(reference.key, str(folder.absolute()), reason))
    return resolved


def missing_models(config: "BaseExperimentConfig", host: HostInfo) -> list[list[ModelReference]]:
    """Models that have to be downloaded."""
    return [references for references in hub_models(config, host).values() if cached_snapshot(references, host) is None]


def offline_model_problems(config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    """Missing models that may not be downloaded."""
    if (switch := offline_switch()) is None:
        return []
    why = f"{switch} is set, which forbids downloads"
    return [
        Problem(references[0].key, missing_model_text(references, here, why))
        for references in missing_models(config, here)
    ]


def offline_switch() -> str | None:
    """The environment variable that forbids downloads, if one is set."""
    return next((name for name in SWITCHES if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)


def missing_model_text(references: Sequence[ModelReference], host: HostInfo, why: str) -> str:
    name, there = references[0].name, snapshots(references[0].name, host.hub)
    reason = f"{name} is neither a folder (as seen from {host.directory.absolute()}) nor in the Hugging Face cache"
    if there:
        reason = f"only a part of {name} is in the Hugging Face cache: {_missing_file(there[0], references)}"
    command = f"python -m areal_like.models.fetch {name}"
    return f"{reason} ({host.hub}), and {why}; `{command}` downloads it on a machine with a network, or name a folder"


def model_download_warnings(config: "BaseExperimentConfig", here: HostInfo) -> Iterator[Problem]:
    """Warnings of a plan: a start downloads these first."""
    if offline_switch() is None:
        for references in missing_models(config, here):
            key, name = references[0].key, references[0].name
            yield Problem(key, f"{name} is not in the Hugging Face cache ({here.hub}); a start downloads it first")


def _missing_file(snapshot: Path, references: Sequence[ModelReference]) -> str:
    """The first missing file."""
    needed = [TOKENIZER_FILE if reference.key == TOKENIZER else "config.json" for reference in references]
    if any(reference.weights for reference in references):
        if (snapshot / INDEX).is_file():
            files = json.loads((snapshot / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
            needed += sorted(set(files))
        elif not any(snapshot.glob("*.bin")):
            needed.append("model.safetensors")
    return next((f"{file} is missing" for file in needed if not (snapshot / file).exists()), "")
