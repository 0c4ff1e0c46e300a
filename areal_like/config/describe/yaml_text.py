"""Writes a configuration as YAML that reads back to the same values."""

import re
from collections.abc import Iterator
from typing import Any

from areal_like.config.sources.yaml_file import scalar

PLAIN = re.compile(r"[A-Za-z_./][\w ./+@%=-]*")


def to_yaml(tree: Any, indent: int = 0) -> str:
    """YAML in block style; lists of plain values on one line."""
    if isinstance(tree, dict) and tree:
        return "\n".join(_lines(tree, indent)) + "\n"
    return scalar_text(tree) + "\n"


def _lines(tree: dict[str, Any], indent: int) -> Iterator[str]:
    pad = "  " * indent
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield f"{pad}{_key(name)}:"
            yield from _lines(value, indent + 1)
        elif isinstance(value, list) and any(isinstance(item, dict) and item for item in value):
            yield f"{pad}{_key(name)}:"
            for item in value:
                yield from _item_lines(item, indent)
        else:
            yield f"{pad}{_key(name)}: {scalar_text(value)}"


def _item_lines(item: Any, indent: int) -> Iterator[str]:
    pad = "  " * indent
    if not isinstance(item, dict) or not item:
        yield f"{pad}- {scalar_text(item)}"
        return
    for index, line in enumerate(_lines(item, indent + 1)):
        yield f"{pad}- {line[len(pad) + 2 :]}" if index == 0 else line


def _key(name: Any) -> str:
    return string_text(str(name))


def scalar_text(value: Any) -> str:
    """One value on one line (flow style for lists and maps)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            return ".inf" if value > 0 else "-.inf"
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(scalar_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)}: {scalar_text(item)}" for name, item in value.items()) + "}"
    return string_text(str(value))


def string_text(value: str) -> str:
    """A string: plain if it reads back as itself, else in double quotes."""
    if PLAIN.fullmatch(value) and not value.endswith(" ") and isinstance(scalar(value), str):
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    named = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    if character in named:
        return named[character]
    code = ord(character)
    if (
        0x20 <= code < 0x7F
        or 0xA0 <= code < 0xD800
        or (0xE000 <= code < 0xFFFE and code not in (0x2028, 0x2029, 0xFEFF))
    ):
        return character
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class Reference(str):
    """A text that is a reference, among values in which `${` is text."""


def escape_references(values: Any) -> Any:
    """Values for a file: escapes `${` that is text."""
    if isinstance(values, Reference):
        return str(values)
    if isinstance(values, dict):
        return {name: escape_references(value) for name, value in values.items()}
    if isinstance(values, list):
        return [escape_references(value) for value in values]
    if isinstance(values, str) and "${" in values:
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", values)
    return values
