"""Trackers (TensorBoard, W&B, SwanLab), selected by `stats_logger`."""

from typing import TYPE_CHECKING

from areal_like.config.sections.trackers import TRACKERS

if TYPE_CHECKING:
    from areal_like.observe.trackers.base import Tracker
    from areal_like.process.run import Run


def open_tracker(name: str, run: "Run") -> "Tracker":
    """Opens a tracker by name."""
    if name == "tensorboard":
        from areal_like.observe.trackers.tensorboard import TensorBoard

        return TensorBoard(run)
    if name == "wandb":
        from areal_like.observe.trackers.wandb import WandB

        return WandB(run)
    if name == "swanlab":
        from areal_like.observe.trackers.swanlab import SwanLab

        return SwanLab(run)
    raise ValueError(f"{name}: no such tracker; there are {', '.join(TRACKERS)}")
