"""SwanLab, by its package."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_like.observe.trackers.base import Tracker
from areal_like.observe.trackers.facts import configuration
from areal_like.process.run import Run

LOGIN = Path(".swanlab/.netrc")
"""Where the package keeps a key of an earlier login, in the home directory."""


class SwanLab(Tracker):
    """One run there per start of a run here."""

    def __init__(self, run: Run) -> None:
        try:
            swanlab: Any = importlib.import_module("swanlab")
        except ImportError:
            message = "the package swanlab is not installed; pip install swanlab, or mode=disabled"
            raise ModuleNotFoundError(message) from None
        config = run.config.stats_logger.swanlab
        online = config.mode in ("cloud", "online")
        if online:
            if config.api_key:
                swanlab.login(api_key=config.api_key, save=False)
            elif not os.environ.get("SWANLAB_API_KEY") and not (Path.home() / LOGIN).is_file():
                # Without one, the package would ask for it on the terminal, where the run is shown.
                raise ValueError("no API key; set SWANLAB_API_KEY, or mode=offline")
        self._run: Any = swanlab.init(
            mode="online" if online else config.mode,
            project=config.project or run.config.experiment_name,
            name=config.name or run.config.trial_name,
            config=configuration(run, config.config),
            log_dir=str(run.directory / (config.logdir or "swanlab")),
            # No questions, no hold on what our terminal shows, no look at the code.
            settings=swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}, probe={"git": False}),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
