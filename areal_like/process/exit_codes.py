"""Exit codes of the command and of every process of a run."""

DONE = 0
FAILED = 1
BAD_CONFIGURATION = 2
STOPPED_EARLY = 75
"""Stopped before the last step, with a checkpoint to resume from."""
INTERRUPTED = 130
