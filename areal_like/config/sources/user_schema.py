"""`--schema my.module:MyConfig`: a user's dataclass that adds keys to an experiment."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from areal_like.config.checks.values import InvalidValue, check_key
from areal_like.config.engines import own_engines
from areal_like.config.experiment import EXPERIMENTS, GRPOConfig
from areal_like.config.loaded import build_config
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.schema import Schema
from areal_like.config.sections.engines.base import EngineKeys
from areal_like.config.sections.trackers import TRACKERS
from areal_like.config.suggest import nearest

KEY = "--schema"


def load_schema(name: str) -> type:
    """The class that `pkg.module:Class` or `file.py:Class` names; raises ConfigError."""
    named_class = import_schema(name, Path.cwd())
    extends = isinstance(named_class, type) and issubclass(named_class, tuple(EXPERIMENTS.values()))
    if not extends or "__dataclass_fields__" not in vars(named_class):
        known = ", ".join(cls.__name__ for cls in EXPERIMENTS.values())
        raise _refuse(f"{name} must be a dataclass that extends one of {known} (from areal_like.config.experiment)")
    try:
        schema = Schema.of(named_class)
        build_config(named_class, schema.defaults())
    except Exception as error:  # user code: annotations, default factories, __post_init__
        raise _refuse(f"{name} cannot be used: {type(error).__name__}: {error}") from None
    _check_schema(name, schema)
    assert isinstance(named_class, type)
    return named_class


def import_schema(name: str, folder: Path) -> Any:
    """The class without the checks of `load_schema`, for processes of a run that the launcher has checked. Relative
    files and modules are looked up in `folder`; a file may import those beside it."""
    module_name, _, class_name = name.rpartition(":")
    if not module_name or not class_name:
        raise _refuse(f"{name!r} names no class; write my.module:MyConfig or path/to/file.py:MyConfig")
    module = _import(module_name, folder)
    named_class = getattr(module, class_name, None)
    if named_class is None:
        classes = [word for word, thing in vars(module).items() if isinstance(thing, type)]
        guess = nearest(class_name, classes)
        raise _refuse(f"{module_name} has no {class_name}" + (f"; did you mean {guess[0]}?" if guess else ""))
    return named_class


def _check_schema(name: str, schema: Schema) -> None:
    """Checks that sections stay sections, defaults are valid, and no key has a reserved name."""
    base_class = next(cls for cls in schema.cls.__mro__ if cls in EXPERIMENTS.values())
    base = Schema.of(base_class)
    wrong = [f"{path} must stay a section" for path in base.sections if path not in schema.sections]
    wrong += [f"a key cannot be called {word}" for word in ("defaults", "hydra") if word in schema.keys]
    for path, key in schema.keys.items():
        if path in base.keys or (key.default is None and key.constraints.required):
            continue
        try:
            check_key(key, key.default)
        except InvalidValue as refusal:
            wrong.append(f"the default of {path}: {refusal}")
    sections = {name: f"stats_logger.{name}" for name in TRACKERS}
    wrong += [
        f"the tracker {name} is registered, but the class has no section {path}"
        for name, path in sections.items()
        if path not in schema.sections and path not in base.sections
    ]
    if issubclass(base_class, GRPOConfig):
        wrong += [message for keys in own_engines() for message in _unknown(keys, schema)]
    if wrong:
        raise ConfigError([Problem(KEY, f"{name}: {message}") for message in wrong])


def _unknown(keys: EngineKeys, schema: Schema) -> Iterator[str]:
    """The keys that the description of an engine names, and its class has not."""
    for field in fields(keys):
        if field.name.endswith("_key") and (path := getattr(keys, field.name)) and path not in schema.keys:
            guess = nearest(path, [known for known in schema.keys if known.startswith(f"{keys.name}.")])
            hint = f"; did you mean {guess[0]}?" if guess else ""
            yield f"EngineKeys of {keys.name}: {field.name} is {path!r}, which is no key of the class{hint}"


def _import(module_name: str, folder: Path) -> Any:
    """Imports the user's module; its exception is reported in one line."""
    try:
        if module_name.endswith(".py"):
            path = (folder / Path(module_name).expanduser()).resolve()
            if not path.is_file():
                raise _refuse(f"no file {module_name}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None and spec.loader is not None
            if str(path.parent) not in sys.path:
                sys.path.append(str(path.parent))
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)
            spec.loader.exec_module(module)
            return module
        if str(folder) not in sys.path and ("" not in sys.path or folder != Path.cwd()):
            sys.path.insert(0, str(folder))
        return importlib.import_module(module_name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise _refuse(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from None


def _refuse(message: str) -> ConfigError:
    return ConfigError([Problem(KEY, message)])
