"""Trackers (TensorBoard, W&B, SwanLab), selected by `stats_logger`."""

import importlib
from typing import TYPE_CHECKING

from areal_like.config.sections.trackers import TRACKERS

if TYPE_CHECKING:
    from areal_like.observe.trackers.base import Tracker
    from areal_like.process.run import Run


def open_tracker(name: str, run: "Run") -> "Tracker":
    """Opens a tracker by name."""
    if name not in TRACKERS:
        raise ValueError(f"{name}: no such tracker; there are {', '.join(TRACKERS)}")
    module, _, writer = TRACKERS[name].writer.partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), writer)(run)
    return tracker
