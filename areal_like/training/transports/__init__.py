"""Ways for new weights from trainer to servers, by the name that `actor.weight_update_mode` gives them."""

from typing import TYPE_CHECKING

from areal_like.process.run import Run
from areal_like.training.transports.base import Transport

if TYPE_CHECKING:
    from areal_like.training.engine import Engine
    from areal_like.training.rollouts import Rollouts


def open_transport(run: Run, engine: "Engine", rollouts: "Rollouts") -> Transport:
    mode = run.config.actor.weight_update_mode
    if mode in ("disk", "filesystem"):
        from areal_like.training.transports.disk import Disk

        return Disk(run, engine)
    if mode in ("collective", "xccl", "nccl"):
        from areal_like.training.transports.collective import Collective

        return Collective(run, engine, rollouts)
    if mode == "adapter":
        from areal_like.training.transports.adapter import Adapter

        return Adapter(run, engine)
    raise ValueError(f"actor.weight_update_mode: there is no {mode}; there are disk, collective and adapter")
