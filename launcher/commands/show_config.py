"""`--cfg[=SECTION]`: the resolved configuration as YAML that can be loaded again."""

from typing import Any

from areal_like.config.checks.values import is_interpolation
from areal_like.config.describe.yaml_text import Reference, escape_references, to_yaml
from areal_like.config.dotted_path import MISSING
from areal_like.config.loaded import Loaded
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.redact import SECRET
from areal_like.config.suggest import did_you_mean


def configuration_text(loaded: Loaded, section: str | None = None) -> str:
    """References are resolved, `auto` stays; a literal secret becomes null, a reference to one stays a reference."""
    values = values_without_secrets(loaded, loaded.values)
    if section is None:
        return to_yaml({"defaults": [{"experiment": loaded.experiment}], **values})
    path = ALIASES.get(section, section).strip(".")
    tree: Any = values
    for name in path.split("."):
        tree = tree.get(name, MISSING) if isinstance(tree, dict) else MISSING
    if tree is MISSING:
        raise ConfigError(
            [Problem(section, f"no such section or key{did_you_mean(path, loaded.schema.names())}", "--cfg")]
        )
    for name in reversed(path.split(".")):
        tree = {name: tree}
    return to_yaml(tree)


def values_without_secrets(loaded: Loaded, chosen: dict[str, Any]) -> dict[str, Any]:
    """`chosen`: the values of the configuration, with or without `auto` resolved."""
    values: dict[str, Any] = escape_references(_shown(loaded, "", chosen, loaded.raw))
    for leaf in loaded.foreign:
        _put(values, leaf.path, escape_references(loaded.redactor.value(leaf.path, leaf.value)))
    return values


def _shown(loaded: Loaded, path: str, value: Any, raw: Any) -> Any:
    """A value without its secrets: blank, or the reference it came from."""
    if isinstance(value, dict):
        below = raw if isinstance(raw, dict) else {}
        return {
            name: _shown(loaded, f"{path}.{name}" if path else name, item, below.get(name))
            for name, item in value.items()
        }
    shown = loaded.redactor.value(path, value)
    if shown == value:
        return value
    if is_interpolation(raw):
        return Reference(raw)
    if shown != SECRET:
        return shown
    key = loaded.schema.keys.get(path)
    return "" if key is not None and not key.kind.optional else None


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for step in above:
        tree = tree.setdefault(step, {})
    tree[name] = value
