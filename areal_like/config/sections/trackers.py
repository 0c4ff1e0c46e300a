"""Where metrics go, besides the run directory."""

from areal_like.config.fields import config, key, section
from areal_like.config.sections.swanlab import SwanlabConfig
from areal_like.config.sections.tensorboard import TensorBoardConfig
from areal_like.config.sections.wandb import WandBConfig

TRACKERS = ("tensorboard", "wandb", "swanlab")
"""Their sections, each of the name of its package."""


@config
class StatsLoggerConfig:
    """Trackers that metrics are sent to. The run directory has them in any case, in `metrics.jsonl`."""

    experiment_name: str = key("${experiment_name}")
    """Experiment that metrics belong to. Follows the experiment's own name; another value is refused."""

    trial_name: str = key("${trial_name}")
    """Trial that metrics belong to. Follows the experiment's own trial; another value is refused."""

    fileroot: str = key("${cluster.fileroot}")
    """Folder above the files of trackers. Follows `cluster.fileroot`; with another they are in
    `<fileroot>/<experiment_name>/<trial_name>/trackers`, where the link `trackers` of the run directory leads."""

    wandb: WandBConfig = section(WandBConfig)
    """Weights & Biases."""

    swanlab: SwanlabConfig = section(SwanlabConfig)
    """SwanLab."""

    tensorboard: TensorBoardConfig = section(TensorBoardConfig)
    """TensorBoard."""

    flush_timeout_s: float = key(60.0, ge=0)
    """Seconds that the end of a run waits for trackers to send what they have."""


def is_enabled(name: str, config: StatsLoggerConfig) -> bool:
    """Whether the configuration wants a tracker."""
    if name == "tensorboard":
        return config.tensorboard.path is not None
    return getattr(config, name).mode not in (None, "disabled")
