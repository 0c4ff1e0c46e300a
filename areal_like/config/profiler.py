"""Traces of a trainer's time and memory."""

from areal_like.config.fields import config, key


@config
class ProfilerConfig:
    """What trainers record about themselves. Both slow training down: meant for short runs."""

    memory_path: str | None = key(None)
    """Folder for one GPU memory snapshot per step and rank, to open with PyTorch's memory viewer. Null: off."""

    trace_path: str | None = key(None)
    """Folder for one timeline per rank over the whole run, for Perfetto or chrome://tracing. Keep such a run below
    ten steps: the files are large. Null: off."""
