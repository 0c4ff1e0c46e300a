"""Reinforcement learning of language models, driven by Hydra and YAML."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_like.api import RunFailed, RunRefused, RunResult, run

__all__ = ["RunFailed", "RunRefused", "RunResult", "__version__", "run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports the API on first use: the command line and the processes of a run do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from areal_like import api

    return getattr(api, name)
