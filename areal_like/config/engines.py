"""The inference engines by name, as the configuration knows them: those that come with the package, and a user's."""

from areal_like.config.sections.engines.base import EngineKeys
from areal_like.config.sections.engines.keys import SHIPPED

_registered = {keys.name: keys for keys in SHIPPED}


def register_keys(keys: EngineKeys) -> None:
    """Replaces those of the same name."""
    _registered[keys.name] = keys


def engines() -> tuple[EngineKeys, ...]:
    return tuple(_registered.values())


def own_engines() -> tuple[EngineKeys, ...]:
    """Those that a user has registered."""
    return tuple(keys for keys in engines() if keys not in SHIPPED)


def engine_names() -> tuple[str, ...]:
    return tuple(_registered)


def engine_keys(name: str) -> EngineKeys:
    if name not in _registered:
        raise ValueError(f"rollout.backend: no engine is called {name!r}; there are {', '.join(_registered)}")
    return _registered[name]


def default_engine() -> EngineKeys:
    """The engine that is always installed."""
    return SHIPPED[0]


def gpu_engines() -> tuple[EngineKeys, ...]:
    """Those that `auto` looks for on a machine with several GPUs, the preferred one first."""
    ranked = [(keys.gpu_rank, keys.name) for keys in engines() if keys.gpu_rank is not None]
    return tuple(_registered[name] for _, name in sorted(ranked))


def example_engine() -> str:
    """The name of an engine that can divide a model, for examples in messages."""
    return gpu_engines()[0].name
