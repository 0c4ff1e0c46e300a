"""Options of the tracker TensorBoard."""

from areal_like.config.fields import config, key, section
from areal_like.config.sections.log_extras import LogExtras


@config
class TensorBoardConfig:
    """TensorBoard event files; off by default."""

    path: str | None = key(None)
    """Folder for event files; a relative one lies in the run directory. Null: none are written."""

    log_extras: LogExtras = section(LogExtras)
    """What is sent besides the metrics: tables of samples and histograms."""
