"""Decides in the plan that layers are compiled on a GPU where nothing sets `compile`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from launcher.plan.plan import Resolved

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

REASON = (
    "on a GPU layers are compiled, and rehearsed at the start: they run uncompiled, with a warning, if that fails or "
    "gives other numbers; {}=null does not compile them"
)


def compiled_layers(loaded: "Loaded", allocation: Allocation | None) -> Iterator[Resolved]:
    """Of models of the trainer whose `compile` nothing sets."""
    if allocation is None or not allocation.num_gpus:
        return
    for name, engine in trained_models(loaded.config):
        key = f"{name}.compile"
        if engine.compile is None and loaded.origin(key).kind == "default":
            yield Resolved(f"{key}.required", False, REASON.format(key))
