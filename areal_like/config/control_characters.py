"""Escapes control characters in texts for the terminal: a file, reward or other process may have written them."""

import re

_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # the last: halves of characters
)


def escape_controls(text: str, keep: str = "\n\t") -> str:
    """The text with `\\x1b` for ESC, and so on; also for characters that change the direction of writing."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
