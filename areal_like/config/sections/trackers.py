"""Where metrics go, besides the run directory."""

from typing import Any

from areal_like.config.fields import config, key, section


@config
class LogExtras:
    """Samples and distributions for a tracker. Reinforcement learning has them; supervised training samples nothing."""

    samples: bool = key(True)
    """Send tables of prompts and answers with their rewards: of three groups of the step (that with the lowest mean
    reward, that with the highest, one at random), and of some rows of an evaluation, the same each time."""

    distributions: bool = key(True)
    """Send histograms: of rewards, advantages and lengths of answers; of an evaluation, of its scores."""

    interval: int = key(10, ge=1)
    """Send both after the first step and after every so many; of evaluations, the first and then those that are at
    least so many steps after the one before."""


@config
class WandBConfig:
    """Weights & Biases; off by default."""

    mode: str = key("disabled", choices=("disabled", "online", "offline", "shared"))
    """`online` sends while the run goes on, `offline` writes files for a later `wandb sync`, `shared` lets several
    processes write into one run."""

    wandb_base_url: str = key("")
    """URL of a server of one's own. Empty: the public service."""

    wandb_api_key: str = key("", secret=True)
    """API key. Better left empty, with WANDB_API_KEY in the environment or in `launcher.env_file`."""

    entity: str | None = key(None)
    """User or team that the run belongs to. Null: the account's default."""

    project: str | None = key(None)
    """Project. Null: the experiment's name."""

    name: str | None = key(None)
    """Name of the run. Null: the trial's name."""

    job_type: str | None = key(None)
    """Kind of job, to filter runs by."""

    group: str | None = key(None)
    """Group that runs are shown under. Null: experiment and trial, joined by an underscore."""

    notes: str | None = key(None)
    """A description of the run."""

    tags: list[str] | None = key(None)
    """Tags of the run."""

    config: dict[str, Any] | None = key(None)
    """Further entries for the run's configuration page, beside the resolved configuration."""

    id_suffix: str | None = key("train")
    """End of the run's id, after experiment and trial; `timestamp` puts the time of the run's first start,
    `unique` a random text."""

    id: str | None = key(None)
    """Id of the run; an id that exists is continued. Null: experiment, trial and `id_suffix`; a run that is resumed
    keeps its id, and a new one is refused the id of another."""

    log_extras: LogExtras = section(LogExtras)
    """What is sent besides the metrics: tables of samples and histograms."""


@config
class SwanlabConfig:
    """SwanLab; off by default."""

    project: str | None = key(None)
    """Project. Null: the experiment's name."""

    name: str | None = key(None)
    """Name of the run. Null: the trial's name."""

    config: dict[str, Any] | None = key(None)
    """Further entries for the run's configuration page, beside the resolved configuration."""

    logdir: str | None = key(None)
    """Folder of the files that SwanLab writes. Null: inside the run directory."""

    mode: str | None = key("disabled", choices=("disabled", "cloud", "online", "local", "offline"))
    """`cloud` and its newer name `online` send while the run goes on, `local` writes files for
    `swanlab watch` and needs the package swanboard, `offline` writes files for a later `swanlab sync`. Null:
    disabled."""

    api_key: str | None = key(None, secret=True)
    """API key. Better left null, with SWANLAB_API_KEY in the environment or in `launcher.env_file`."""

    log_extras: LogExtras = section(LogExtras)
    """What is sent besides the metrics: tables of samples and histograms."""


@config
class TensorBoardConfig:
    """TensorBoard event files; off by default."""

    path: str | None = key(None)
    """Folder for event files; a relative one lies in the run directory. Null: none are written."""

    log_extras: LogExtras = section(LogExtras)
    """What is sent besides the metrics: tables of samples and histograms."""


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


@config
class LogConfig:
    """What the processes of a run log, and where."""

    level: str = key("info", choices=("debug", "info", "warning", "error"))
    """Least serious message that is logged."""

    environment_level: str = key("warning", choices=("debug", "info", "warning", "error"))
    """The same for environments and the libraries they use."""

    file: bool = key(True)
    """Write each process's log into the folder `logs` of the run directory. False: only what is shown is kept."""

    data: bool = key(False)
    """Log the text of some samples that are trained on. Mind who may read the log."""


@config
class ProfilerConfig:
    """What trainers record about themselves. Both slow training down: meant for short runs."""

    memory_path: str | None = key(None)
    """Folder for one GPU memory snapshot per step and rank (`step_N/rank_R.pickle`), to open with PyTorch's memory
    viewer. A relative one is in the run directory. Null: off."""

    trace_path: str | None = key(None)
    """Folder for one timeline per rank over the whole run (`trace_R.json.gz`), for Perfetto or chrome://tracing. A
    relative one is in the run directory. Only for runs of fewer than ten steps: the files are large. Null: off."""
