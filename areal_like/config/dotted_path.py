"""Values by dotted path in nested dicts and lists."""

from collections.abc import Iterable
from typing import Any

MISSING: Any = object()
"""A default for `value_at` that no configuration contains."""


def value_at(tree: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path; `default` if there is none (such as below a null section)."""
    node = tree
    for name in path.split(".") if path else ():
        if isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            return default
    return node


def value_of(config: Any, path: str) -> Any:
    """The value at a dotted path of a section's instance; None below a null or absent section. `list.0.key` is of the
    first item."""
    for name in path.split("."):
        config = config[int(name)] if isinstance(config, list) else getattr(config, name, None)
    return config


def nested(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The tree of values by dotted path, later ones above earlier ones; `{}` keeps what is set below it."""
    tree: dict[str, Any] = {}
    for path, value in values:
        node = tree
        *above, name = path.split(".")
        for step in above:
            if not isinstance(node.get(step), dict):
                node[step] = {}
            node = node[step]
        if value != {} or not isinstance(node.get(name), dict):
            node[name] = value
    return tree
