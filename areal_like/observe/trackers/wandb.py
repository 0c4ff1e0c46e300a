"""Weights & Biases tracker."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from areal_like.observe.tracker_samples import Extras
from areal_like.observe.trackers.base import Tracker, tracker_config
from areal_like.observe.trackers.run_ids import tracker_run_id
from areal_like.process.run import Run

STEP = "step"


class WandB(Tracker):
    """One W&B run per run; a resumed run continues in it."""

    def __init__(self, run: Run) -> None:
        config, names = run.config.stats_logger.wandb, (run.config.experiment_name, run.config.trial_name)
        super().__init__(config.log_extras)
        self._wandb: Any = import_module("wandb")
        # No output on the terminal, and no scan of the code, which may be in a large repository.
        settings = {"console": "off", "silent": True, "disable_git": True}
        if config.wandb_base_url:
            settings["base_url"] = config.wandb_base_url
        if config.wandb_api_key:
            settings["api_key"] = config.wandb_api_key
        if config.mode == "shared":
            settings |= {"x_primary": True, "x_label": "observer"}
        self._wandb.setup(self._wandb.Settings(silent=True))  # for messages before the run exists
        identity = tracker_run_id(run, "wandb", config.id, config.id_suffix)
        self._run: Any = self._wandb.init(
            mode=config.mode,
            entity=config.entity,
            project=config.project or run.config.experiment_name,
            name=config.name or run.config.trial_name,
            job_type=config.job_type,
            group=config.group or "_".join(names),
            notes=config.notes,
            tags=config.tags,
            config=tracker_config(run, config.config),
            id=identity.id,
            # A new run never continues a run of the same name that was started elsewhere.
            resume="allow" if identity.is_known else "never",
            dir=str(run.trackers),
            settings=self._wandb.Settings(**settings),
        )
        # W&B's step counter cannot go back; the run's steps do after a recovery.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **values})

    def show(self, extras: Extras) -> None:
        shown: dict[str, Any] = {STEP: extras.step}
        if extras.samples:
            shown[extras.table] = self._wandb.Table(columns=extras.columns, data=extras.rows)
        for name, values in extras.histograms.items():
            shown[name] = self._wandb.Histogram(list(values))
        self._run.log(shown)

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()  # waits for its service process, which writes the remaining values
