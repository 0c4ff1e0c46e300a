"""Says in the plan that layers are not compiled where a GPU would gain by it, and how to compile them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from launcher.plan.plan import Resolved

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

REASON = "off until compiled layers have run on a GPU: they need a C compiler there; {}.fullgraph=false compiles them"


def uncompiled_layers(loaded: "Loaded", allocation: Allocation | None) -> Iterator[Resolved]:
    """Of trained models on a GPU whose `compile` nothing sets."""
    if allocation is None or not allocation.num_gpus:
        return
    for name, engine in trained_models(loaded.config):
        key = f"{name}.compile"
        if engine.optimizer is not None and engine.compile is None and loaded.origin(key).kind == "default":
            yield Resolved(key, None, REASON.format(key))
