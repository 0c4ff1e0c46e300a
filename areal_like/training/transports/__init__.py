"""Weight transports from trainer to servers, by `actor.weight_update_mode`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from areal_like.process.run import Run
from areal_like.training.transports.base import Transport
from areal_like.weights.transfer_path import COLLECTIVE_MODES, FILE_MODES

if TYPE_CHECKING:
    from areal_like.training.controller_client import TrainerControllerClient
    from areal_like.training.engine import TrainEngine


def open_transport(
    run: Run, engine: "TrainEngine", controller: "TrainerControllerClient", require: Callable[[], None]
) -> Transport:
    """`require` raises if the run is not this process's own any more: it is called before files are changed."""
    mode = run.config.actor.weight_update_mode
    if mode in FILE_MODES:
        from areal_like.training.transports.disk import DiskTransport

        return DiskTransport(run, engine, require)
    if mode in COLLECTIVE_MODES:
        from areal_like.training.transports.collective import CollectiveTransport

        return CollectiveTransport(run, engine, controller)
    if mode == "adapter":
        from areal_like.training.transports.adapter import AdapterTransport

        return AdapterTransport(run, engine, require)
    raise ValueError(f"actor.weight_update_mode: {mode!r} is not one of disk, collective and adapter")
