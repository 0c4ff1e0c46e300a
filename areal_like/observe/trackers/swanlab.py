"""SwanLab tracker."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers.base import Tracker, tracker_config
from areal_like.observe.trackers.run_ids import tracker_run_id
from areal_like.process.run import Run

BINS = 30
CONSOLE = "swanlab.sdk.internal.pkg.console"
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
"""Characters that SwanLab does not allow in an id."""


class SwanLab(Tracker):
    """One SwanLab run per run; a resumed run continues in it. SwanLab keeps the first values of a repeated step."""

    def __init__(self, run: Run) -> None:
        config = run.config.stats_logger.swanlab
        super().__init__(config.log_extras)
        self._swanlab: Any = import_module("swanlab")
        # SwanLab (0.10.3) has no setting for this: its output would disturb the progress display.
        import_module(CONSOLE).c.quiet = True
        online = config.mode in ("cloud", "online")
        if online and config.api_key:
            self._swanlab.login(api_key=config.api_key, save=False)
        # SwanLab's ids are not per project: the run's id distinguishes runs of the same name.
        identity = FORBIDDEN.sub("_", tracker_run_id(run, "swanlab", None, "unique").id)
        self._run: Any = self._swanlab.init(
            mode="online" if online else config.mode,
            project=config.project or run.config.experiment_name,
            name=config.name or run.config.trial_name,
            config=tracker_config(run, config.config),
            log_dir=str(run.trackers / (config.logdir or "swanlab")),
            id=identity,
            resume="allow",
            # No prompts, no capture of the terminal, no upload of code.
            settings=self._swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}, probe={"git": False}),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def show(self, extras: Extras) -> None:
        charts = self._swanlab.echarts
        shown: dict[str, Any] = {}
        if extras.samples:
            shown[extras.table] = charts.Table().add(extras.columns, extras.rows)
        for name, values in extras.histograms.items():
            shown[name] = self._histogram(values)
        self._run.log(shown, step=extras.step)

    def _histogram(self, values: Sequence[float]) -> Any:
        counts, edges = np.histogram(values, bins=BINS)
        bars = self._swanlab.echarts.Bar()
        bars.add_xaxis([f"{(low + high) / 2:.4g}" for low, high in pairwise(edges)])
        return bars.add_yaxis("number", counts.tolist())

    def close(self) -> None:
        self._run.finish()
