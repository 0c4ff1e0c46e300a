"""Options of the tracker TensorBoard."""

from areal_like.config.fields import config, key


@config
class TensorBoardConfig:
    """TensorBoard event files; off by default."""

    path: str | None = key(None)
    """Folder for event files; a relative one lies in the run directory. Null: none are written."""
