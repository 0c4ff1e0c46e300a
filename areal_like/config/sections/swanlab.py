"""Options of the tracker SwanLab."""

from typing import Any

from areal_like.config.fields import config, key, section
from areal_like.config.sections.log_extras import LogExtras


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
