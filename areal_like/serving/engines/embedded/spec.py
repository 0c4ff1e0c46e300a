"""What the launcher and the servers know of the embedded engine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.models import starts_servers
from areal_like.config.checks.registry import Check
from areal_like.config.problems import Problem, Stage
from areal_like.config.sections.engines.embedded import KEYS
from areal_like.serving.engines.spec import EngineSpec

if TYPE_CHECKING:
    from areal_like.config.allocation import Allocation
    from areal_like.config.experiment import GRPOConfig


def _without_gpu(config: "GRPOConfig", allocation: "Allocation", host: Any) -> Iterator[Problem]:
    if config.embedded.device == "cuda" and starts_servers(config) and not allocation.num_gpus:
        reason = f"is cuda, and there is no GPU ({host.machine.how}); set embedded.device=auto"
        yield Problem("embedded.device", reason)


SPEC = EngineSpec(KEYS, checks=(Check("a GPU for the engine", Stage.MISSING, _without_gpu),))
