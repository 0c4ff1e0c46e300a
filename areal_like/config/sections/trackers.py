"""Section `stats_logger`: trackers."""

from dataclasses import fields
from typing import Any, NamedTuple

from areal_like.config.fields import METADATA_KEY, config, key, must_follow, section


@config
class LogExtras:
    """Samples and distributions for a tracker, in reinforcement learning."""

    samples: bool = key(True)
    """Send tables of prompts and answers with their rewards: of three groups of the step (with the lowest and the
    highest mean reward, and a random one), and of some rows of an evaluation, the same each time."""

    distributions: bool = key(True)
    """Send histograms of rewards, advantages and answer lengths, and of the scores of an evaluation."""

    interval: int = key(10, ge=1)
    """Interval in steps, beginning with the first step; for evaluations, the minimum number of steps between two that
    are sent."""


@config
class WandBConfig:
    """Weights & Biases; off by default."""

    mode: str = key("disabled", choices=("disabled", "online", "offline", "shared"))
    """`online` sends during the run, `offline` writes files for a later `wandb sync`, `shared` lets several processes
    write to one run."""

    wandb_base_url: str = key("")
    """URL of a self-hosted server. Empty: the public service."""

    wandb_api_key: str = key("", secret=True)
    """API key. Better left empty, with WANDB_API_KEY in the environment or in `launcher.env_file`."""

    entity: str | None = key(None)
    """User or team that the run belongs to. Null: the account's default."""

    project: str | None = key(None)
    """Project name. Null: the experiment's name."""

    name: str | None = key(None)
    """Name of the run. Null: the trial's name."""

    job_type: str | None = key(None)
    """Job type, to filter runs."""

    group: str | None = key(None)
    """Group of the run. Null: experiment and trial, joined by an underscore."""

    notes: str | None = key(None)
    """A description of the run."""

    tags: list[str] | None = key(None)
    """Tags of the run."""

    config: dict[str, Any] | None = key(None)
    """Further entries of the run's configuration page, beside the resolved configuration."""

    id_suffix: str | None = key("train")
    """Suffix of the run's id, after experiment and trial; `timestamp` is the time of the run's first start, `unique` a
    random text."""

    id: str | None = key(None)
    """Id of the run; the run with this id is continued if it exists. Null: experiment, trial and `id_suffix`; a resumed
    run keeps its id, and a new run is refused if another run has it."""

    log_extras: LogExtras = section(LogExtras)
    """Tables of samples, and histograms."""


@config
class SwanlabConfig:
    """SwanLab; off by default."""

    project: str | None = key(None)
    """Project name. Null: the experiment's name."""

    name: str | None = key(None)
    """Name of the run. Null: the trial's name."""

    config: dict[str, Any] | None = key(None)
    """Further entries of the run's configuration page, beside the resolved configuration."""

    logdir: str | None = key(None)
    """Folder of the files that SwanLab writes. Null: inside the run directory."""

    mode: str | None = key("disabled", choices=("disabled", "cloud", "online", "local", "offline"))
    """`cloud` and its newer name `online` send during the run, `local` writes files for `swanlab watch` and needs the
    package swanboard, `offline` writes files for a later `swanlab sync`. Null: disabled."""

    api_key: str | None = key(None, secret=True)
    """API key. Better left null, with SWANLAB_API_KEY in the environment or in `launcher.env_file`."""

    log_extras: LogExtras = section(LogExtras)
    """Tables of samples, and histograms."""


@config
class TensorBoardConfig:
    """TensorBoard event files; off by default."""

    path: str | None = key(None)
    """Folder for event files; a relative path is in the run directory. Null: none are written."""

    log_extras: LogExtras = section(LogExtras)
    """Tables of samples, and histograms."""


class TrackerKind(NamedTuple):
    """The class of its section, and the one that writes (a `Tracker`), as `package.module:Class`. The section has
    `log_extras`, and either `path`, a file or folder, or `mode`, whether values are sent to a service."""

    section: type
    writer: str
    package: str | None = None
    """What it needs, named as Python imports it and pip installs it. None: nothing more than areal_like."""
    online: tuple[str, ...] = ()
    """Values of `mode` that need an API key."""
    api_key: str = ""
    """The key of its section that holds it."""

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """The keys of its section, with the choices of those that have some."""
        return {each.name: each.metadata[METADATA_KEY].choices or () for each in fields(self.section)}

    @property
    def is_remote(self) -> bool:
        """Whether it can send data to a server; `mode` selects whether it does."""
        return "mode" in self.choices


TRACKERS = {
    "tensorboard": TrackerKind(
        TensorBoardConfig, "areal_like.observe.trackers.tensorboard:TensorBoard", package="tensorboard"
    ),
    "wandb": TrackerKind(
        WandBConfig,
        "areal_like.observe.trackers.wandb:WandB",
        package="wandb",
        online=("online", "shared"),
        api_key="wandb_api_key",
    ),
    "swanlab": TrackerKind(
        SwanlabConfig,
        "areal_like.observe.trackers.swanlab:SwanLab",
        package="swanlab",
        online=("cloud", "online"),
        api_key="api_key",
    ),
}
"""By the name of the section: those that come with the package, and a user's."""


def register_tracker(name: str, kind: TrackerKind) -> None:
    """Makes a tracker known, whose section is `stats_logger.<name>`. To be called by the module that `--schema` names,
    which every process of a run imports. Raises ValueError for a section without the keys of a tracker, and for a name
    that another writer has."""
    known, title = TRACKERS.get(name), kind.section.__name__
    if known is not None and known.writer != kind.writer:
        raise ValueError(f"the tracker {name} is registered already, with {known.writer}; take another name")
    for each in fields(kind.section):
        if METADATA_KEY not in each.metadata:
            raise ValueError(f"{title}.{each.name} is no key of the configuration; declare {each.name} with key()")
    keys = {*kind.choices}
    if {"mode", "path"} <= keys:
        raise ValueError(f"{title} has mode and path; leave out path if the tracker sends to a service, else mode")
    lacking = [key for key in ("log_extras", kind.api_key) if key and key not in keys]
    if not keys & {"mode", "path"}:
        lacking.append("mode or path")
    if kind.online and not (kind.is_remote and kind.api_key):
        raise ValueError(f"the TrackerKind of {name} has online, but no mode and api_key; give all or none of them")
    if lacking:
        raise ValueError(f"{title} has no {', no '.join(lacking)}, which the tracker {name} needs")
    TRACKERS[name] = kind


@config
class StatsLoggerConfig:
    """Trackers that metrics are sent to. `metrics.jsonl` in the run directory always has them."""

    experiment_name: str = key("${experiment_name}", rules=(must_follow(),))
    """Experiment of the metrics. Follows the experiment's own name."""

    trial_name: str = key("${trial_name}", rules=(must_follow(),))
    """Trial of the metrics. Follows the experiment's own trial."""

    fileroot: str = key("${cluster.fileroot}")
    """Root folder of the files of trackers. Follows `cluster.fileroot`; with another one they are in
    `<fileroot>/<experiment_name>/<trial_name>/trackers`, and `trackers` in the run directory links there."""

    wandb: WandBConfig = section(WandBConfig)
    """Weights & Biases."""

    swanlab: SwanlabConfig = section(SwanlabConfig)
    """SwanLab."""

    tensorboard: TensorBoardConfig = section(TensorBoardConfig)
    """TensorBoard."""

    flush_timeout_s: float = key(60.0, ge=0)
    """Seconds to wait at the end of a run until trackers have sent their data."""


def is_enabled(name: str, config: StatsLoggerConfig) -> bool:
    """Whether a tracker is configured. Only the class that a user's module adds has the section of its tracker."""
    section = getattr(config, name, None)
    if section is not None and TRACKERS[name].is_remote:
        return section.mode not in (None, "disabled")
    return section is not None and section.path is not None
