"""Values of JSON that orjson can write: larger integers, deeper nesting and halves of characters become text."""

import json
from typing import Any

INTEGERS = range(-(1 << 63), 1 << 64)
MAX_DEPTH = 100
"""Of 254 levels that orjson writes: some are around the value."""


def plain_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Equal for what orjson can write. What JSON does not have is a text as well."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, int):
        return value if value in INTEGERS else str(value)
    if isinstance(value, dict | list | tuple) and not depth:
        return plain_json(json.dumps(value, default=str, skipkeys=True))
    if isinstance(value, dict):
        return {_key(name): plain_json(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(each, depth - 1) for each in value]
    return plain_json(str(value))


def plain_text(text: str) -> str:
    """Half of a surrogate pair, which is no text in UTF-8, becomes a question mark."""
    return text.encode(errors="replace").decode()


def _key(name: Any) -> str:
    return str(plain_json(name if isinstance(name, str) else json.dumps(name, default=str)))
