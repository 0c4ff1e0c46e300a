"""Weights & Biases, by its package."""

import importlib
import netrc
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.facts import configuration
from areal_like.process.run import Run

HOST = "https://api.wandb.ai"


class WandB(Tracker):
    """One run there per run here: a resumed one goes on in the same."""

    def __init__(self, run: Run) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise ModuleNotFoundError(
                "the package wandb is not installed; pip install wandb, or mode=disabled"
            ) from None
        config, names = run.config.stats_logger.wandb, (run.config.experiment_name, run.config.trial_name)
        if config.mode in ("online", "shared"):
            _check_key(config.wandb_api_key, config.wandb_base_url or os.environ.get("WANDB_BASE_URL") or HOST)
        # Nothing of it on our terminal, and no look at the code, which may lie in a large repository.
        settings = {"console": "off", "silent": True, "disable_git": True}
        if config.wandb_base_url:
            settings["base_url"] = config.wandb_base_url
        if config.wandb_api_key:
            settings["api_key"] = config.wandb_api_key
        if config.mode == "shared":
            settings |= {"x_primary": True, "x_label": "observer"}
        self._run: Any = wandb.init(
            mode=config.mode,
            entity=config.entity,
            project=config.project or run.config.experiment_name,
            name=config.name or run.config.trial_name,
            job_type=config.job_type,
            group=config.group or "_".join(names),
            notes=config.notes,
            tags=config.tags,
            config=configuration(run, config.config),
            id=config.id or "_".join([*names, *_suffix(config.id_suffix)]),
            resume=None if config.mode == "offline" else "allow",
            dir=str(run.directory),
            settings=wandb.Settings(**settings),
        )
        # Its own count of steps must not go back; ours does when a run recovers.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


def _suffix(suffix: str | None) -> list[str]:
    if not suffix:
        return []
    return [time.strftime("%Y%m%d-%H%M%S") if suffix == "timestamp" else suffix]


def _check_key(key: str, url: str) -> None:
    """Without one, the package would ask for it on the terminal, where the run is shown."""
    if key or os.environ.get("WANDB_API_KEY"):
        return
    try:
        known = netrc.netrc().authenticators(urlsplit(url).hostname or url)
    except (FileNotFoundError, netrc.NetrcParseError):
        known = None
    if known is None:
        raise ValueError("no API key; set WANDB_API_KEY, or mode=offline")
