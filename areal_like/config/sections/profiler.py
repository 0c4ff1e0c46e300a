"""Traces of a trainer's time and memory."""

from areal_like.config.fields import config, key


@config
class ProfilerConfig:
    """What trainers record about themselves. Both slow training down: meant for short runs."""

    memory_path: str | None = key(None)
    """Folder for one GPU memory snapshot per step and rank (`step_N/rank_R.pickle`), to open with PyTorch's memory
    viewer. A relative one is in the run directory. Null: off."""

    trace_path: str | None = key(None)
    """Folder for one timeline per rank over the whole run (`trace_R.json.gz`), for Perfetto or chrome://tracing. A
    relative one is in the run directory. Only for runs of fewer than ten steps: the files are large. Null: off."""
