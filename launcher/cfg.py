"""`--cfg[=SECTION]`: the configuration as YAML that loads again to the same values."""

from typing import Any

from areal_like.config.aliases import ALIASES
from areal_like.config.check import is_interpolation
from areal_like.config.dump import dump, loadable
from areal_like.config.loaded import MISSING, Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.suggest import did_you_mean


def configuration_text(loaded: Loaded, section: str | None = None) -> str:
    """References are resolved, `auto` stays, a literal secret is null (a reference to one stays a reference)."""
    values = _without_secrets(loaded)
    if section is None:
        return dump({"defaults": [{"experiment": loaded.experiment}], **values})
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
    return dump(tree)


def _without_secrets(loaded: Loaded) -> dict[str, Any]:
    values: dict[str, Any] = loadable(loaded.values)
    for path, key in loaded.schema.keys.items():
        if not key.constraints.secret or "[]" in path:
            continue
        *above, name = path.split(".")
        node: Any = values
        for step in above:
            node = node.get(step) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(name):
            raw = loaded.get_raw(path)
            node[name] = raw if is_interpolation(raw) else _blank(key.kind.optional)
    for leaf in loaded.foreign:
        _put(values, leaf.path, loadable(leaf.value))
    return values


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for step in above:
        tree = tree.setdefault(step, {})
    tree[name] = value


def _blank(optional: bool) -> Any:
    return None if optional else ""
