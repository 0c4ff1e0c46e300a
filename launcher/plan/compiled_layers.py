"""Decides in the plan that layers are compiled on a GPU where nothing sets `compile`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.allocation import Allocation
from areal_like.config.allocation.models import trained_models
from areal_like.config.number_text import count_text
from launcher.plan.host import HostInfo
from launcher.plan.model_config import known_shape
from launcher.plan.plan import Resolved

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

SMALL = 50_000_000
"""Parameters of a model whose steps take milliseconds: the compiler took a minute for one of 0.4 million on an H200,
more than a whole run of it."""
REASON = (
    "on a GPU layers are compiled, and rehearsed at the start: they run uncompiled, with a warning, if that fails or "
    "gives other numbers; {}=null does not compile them"
)


SMALL_REASON = "with {} parameters compiling takes longer than it saves; {}.fullgraph=false compiles layers"


def compiled_layers(loaded: "Loaded", allocation: Allocation | None, host: HostInfo) -> Iterator[Resolved]:
    """Of models of the trainer whose `compile` nothing sets."""
    if allocation is None or not allocation.num_gpus:
        return
    for name, engine in trained_models(loaded.config):
        key = f"{name}.compile"
        if engine.compile is not None or loaded.origin(key).kind != "default":
            continue
        shape = known_shape(engine.path, host)
        if shape is not None and (count := shape.parameters(engine.is_critic)) < SMALL:
            yield Resolved(key, None, SMALL_REASON.format(count_text(count), key))
        else:
            yield Resolved(f"{key}.required", False, REASON.format(key))
