"""Options of the tracker Weights & Biases."""

from typing import Any

from areal_like.config.fields import config, key, section
from areal_like.config.sections.log_extras import LogExtras


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
