"""Checks the folders of models before a start: config.json, weights (also those of an index), tokenizer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.allocation.models import generates, trained_models
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.models import BUILT_IN
from areal_like.process.checkpoint_files import complete_checkpoints
from areal_like.process.run import CONFIG as RUN_CONFIG
from areal_like.process.run_links import CHECKPOINTS
from launcher.plan.host import HostInfo
from launcher.plan.model_config import read_config
from launcher.plan.reward_model import has_reward_model, reward_model_source
from launcher.runs.registry import find_runs

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHTS = ("*.safetensors", "*.bin")
ADAPTER = "adapter_config.json"
"""In a folder that holds only adapters; it names their base model."""


def model_file_problems(config: "BaseExperimentConfig", here: HostInfo) -> list[Problem]:
    """For all models that a run loads from folders; those in the Hub's cache are checked by `hub`."""
    problems: list[Problem] = []
    host, runs = here, set()
    for name, engine in trained_models(config):
        if engine.path in runs:
            continue
        if (run := _run(engine.path, config, host)) is not None:
            runs.add(engine.path)
            problems.append(Problem(f"{name}.path", _of_run(f"{name}.path", engine.path, run)))
            continue
        scratch = f", or {name}.init_from_scratch=true for random weights" if name != "ref" else ""
        problems += _in_folder(f"{name}.path", engine.path, host, not engine.init_from_scratch, scratch)
    if isinstance(config, GRPOConfig) and has_reward_model(config):
        model = reward_model_source(config, host)
        if model is not None and not model.problem:
            problems += _in_folder(model.key, model.path, host, True)
    return problems + ([] if getattr(config, "tokenizer_path", "") in runs else list(_tokenizer(config, host)))


def _run(path: str, config: "BaseExperimentConfig", host: HostInfo) -> Path | None:
    """The run that a path is, or names, where it is not a model. A name with a slash is taken as one on the Hub."""
    if not path or path.startswith(BUILT_IN) or (host.directory / Path(path).expanduser() / CONFIG).is_file():
        return None
    root = host.directory / Path(config.cluster.fileroot).expanduser()
    for folder in (host.directory / Path(path).expanduser(), root / path):
        if (folder / RUN_CONFIG).is_file() and (folder / CHECKPOINTS).is_dir():
            return folder
    runs = find_runs(path, root, host.directory) if "/" not in path else []
    return runs[0] if len(runs) == 1 else None


def _of_run(key: str, path: str, run: Path) -> str:
    checkpoints = complete_checkpoints(run / CHECKPOINTS)
    if not checkpoints:
        return f"{path} is a run ({run}), which has no complete checkpoint yet; name the folder of a model"
    newest = checkpoints[-1][1]
    return f"{path} is a run, not the folder of a model; its newest checkpoint is {key}={newest}"


def missing_weights(folder: Path) -> str:
    """The first missing part of the weights; empty where they are complete."""
    for name in INDEXES:
        if (folder / name).is_file():
            content = read_config(folder / name)
            listed = (content or {}).get("weight_map")
            if not isinstance(listed, dict):
                return f"a readable {name}"
            files = sorted({str(file) for file in listed.values()})
            absent = [file for file in files if not (folder / file).is_file()]
            return f"{absent[0]}, one of {len(files)} files of weights" if absent else ""
    if any(any(folder.glob(pattern)) for pattern in WEIGHTS) or (folder / ADAPTER).is_file():
        return ""
    return "weights (model.safetensors)"


def _in_folder(key: str, path: str, host: HostInfo, weights: bool, scratch: str = "") -> Iterator[Problem]:
    folder = _folder(path, host)
    if folder is None:
        return
    if not (folder / CONFIG).is_file():
        yield Problem(key, f"{path} has no {CONFIG}; name the folder of a model as transformers saves it")
        return
    try:
        json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as fault:
        yield Problem(key, f"{path}/{CONFIG} is not JSON ({fault}); copy the model again")
        return
    if weights and (problem := missing_weights(folder)):
        yield Problem(key, f"{path} has no {problem}; name the folder of a complete model{scratch}")


def _tokenizer(config: "BaseExperimentConfig", host: HostInfo) -> Iterator[Problem]:
    """A missing tokenizer; random tokens need none."""
    if config.train_dataset.fake is not None and not generates(config):
        return
    folder = _folder(getattr(config, "tokenizer_path", ""), host)
    if folder is not None and not (folder / TOKENIZER).is_file():
        reason = f"{config.tokenizer_path} has no {TOKENIZER}; only fast tokenizers can be used (save_pretrained of "
        yield Problem("tokenizer_path", f"{reason}transformers' AutoTokenizer writes one)")


def _folder(path: str, host: HostInfo) -> Path | None:
    """The folder of a path; None for built-in models and names on the Hub."""
    if not path or path.startswith(BUILT_IN):
        return None
    folder = host.directory / Path(path).expanduser()
    return folder if folder.is_dir() else None
