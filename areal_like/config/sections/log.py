"""What is logged."""

from areal_like.config.fields import config, key


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
