"""The inference engines by name: those that come with the package, each in a folder here, and a user's."""

from importlib import import_module

from areal_like.config.engines import engine_keys, register_keys
from areal_like.config.sections.engines.keys import SHIPPED
from areal_like.process.run import Run
from areal_like.serving.engines.spec import EngineSpec

_registered: dict[str, EngineSpec] = {}


def register_engine(spec: EngineSpec) -> None:
    """Makes an engine known under its name: to `rollout.backend`, `allocation_mode`, the plan and the servers. To be
    called by the module that `--schema` names, which every process of a run imports. Raises ValueError for a spec that
    no server can start."""
    if spec.command is None and spec.open is None:
        raise ValueError(f"the EngineSpec of {spec.name} has neither open nor command; give one of them")
    if spec.command is not None and spec.connect is None:
        raise ValueError(f"the EngineSpec of {spec.name} has a command and no connect; give both")
    register_keys(spec.keys)
    _registered[spec.name] = spec


def engine_spec(name: str) -> EngineSpec:
    """Raises ValueError for an unknown name."""
    keys = engine_keys(name)
    if name not in _registered:
        assert keys in SHIPPED, f"{name} has keys and no spec"
        _registered[name] = import_module(f"{__package__}.{name}.spec").SPEC
    return _registered[name]


def engine_of(run: Run) -> EngineSpec:
    """The engine of the servers that the run starts; the key may also contain their number."""
    return engine_spec(str(run.config.rollout.backend).partition(":")[0])
