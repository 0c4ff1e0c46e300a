"""Reads values by dotted path out of nested dicts and lists."""

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
    """The value at a dotted path of a section's instance; None below a null or absent section."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config
