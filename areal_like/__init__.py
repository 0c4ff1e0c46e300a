"""Reinforcement learning of language models, driven by Hydra and YAML."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_like.api import RunFailed, RunRefused, RunResult, run
    from areal_like.config.sections.engines.base import EngineKeys
    from areal_like.config.sections.trackers import TrackerKind, register_tracker
    from areal_like.process.errors import InfrastructureError
    from areal_like.process.sandbox.base import SandboxError, SandboxLimits
    from areal_like.process.sandbox.sandbox import Sandbox
    from areal_like.serving.engines.registry import register_engine
    from areal_like.serving.engines.spec import EngineSpec

__all__ = [
    "EngineKeys",
    "EngineSpec",
    "InfrastructureError",
    "RunFailed",
    "RunRefused",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "TrackerKind",
    "__version__",
    "register_engine",
    "register_tracker",
    "run",
]

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("RunFailed", "RunRefused", "RunResult", "run"), "areal_like.api"),
    "EngineKeys": "areal_like.config.sections.engines.base",
    "EngineSpec": "areal_like.serving.engines.spec",
    "InfrastructureError": "areal_like.process.errors",
    **dict.fromkeys(("TrackerKind", "register_tracker"), "areal_like.config.sections.trackers"),
    "Sandbox": "areal_like.process.sandbox.sandbox",
    **dict.fromkeys(("SandboxError", "SandboxLimits"), "areal_like.process.sandbox.base"),
    "register_engine": "areal_like.serving.engines.registry",
}


def __getattr__(name: str) -> Any:
    """Imports the public names on first use: the command line and the processes of a run do not need most of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
