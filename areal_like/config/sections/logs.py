"""Sections `log` and `profiler`: logs, and traces of the trainers."""

from areal_like.config.fields import config, key


@config
class LogConfig:
    """What the processes of a run log, and where."""

    level: str = key("info", choices=("debug", "info", "warning", "error"))
    """Minimum level of logged messages."""

    environment_level: str = key("warning", choices=("debug", "info", "warning", "error"))
    """Minimum level of messages of environments, and of the libraries they use, which run in processes of their own."""

    file: bool = key(True)
    """Write each process's log to the folder `logs` of the run directory. False: logs are only shown;
    beyond `log.max_mb` nothing but its last lines is kept of what a process prints."""

    max_mb: int = key(256, ge=1)
    """Size of a process's log at which its content moves to a second file with the ending `.1`, which replaces the one
    before, and the log begins anew: a start of a process keeps at most twice as much. Sizes are checked every few
    seconds. Lines that are written during the move may be lost. A log whose copy would leave the disk nearly full
    grows on."""

    data: bool = key(False)
    """Show the text of one training sample per step, or the messages of a conversation, on the terminal and in the log.
    Anybody who can read the log can read them."""


@config
class ProfilerConfig:
    """Profiles of the trainers. Both slow training down: use them for short runs."""

    memory_path: str | None = key(None)
    """Folder for one GPU memory snapshot per step and rank (`step_N/rank_R.pickle`), to open with PyTorch's memory
    viewer. A relative path is in the run directory. Null: off."""

    trace_path: str | None = key(None)
    """Folder for one timeline per rank over the whole run (`trace_R.json.gz`), for Perfetto or chrome://tracing. A
    relative path is in the run directory. Only for runs of fewer than ten steps: the files are large. Null: off."""
