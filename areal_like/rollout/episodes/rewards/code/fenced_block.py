"""The program in an answer: its last fenced block of Python."""

import re

OPENING = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+-]*)[^`]*")
PYTHON = ("", "py", "python", "python3")


def last_python_block(completion: str) -> str | None:
    """None if there is none; one that is cut off is none."""
    found: str | None = None
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in completion.split("\n"):
        if opening is None:
            opening, lines = OPENING.fullmatch(line), []
        elif _closes(line.strip(), opening["fence"]):
            if opening["language"].lower() in PYTHON:
                found = "\n".join((*lines, ""))
            opening = None
        else:
            indent = len(line) - len(line.lstrip(" "))
            lines.append(line[min(indent, len(opening["indent"])) :])
    return None if found is None else found.encode("utf-8", "replace").decode()


def _closes(line: str, fence: str) -> bool:
    return line.startswith(fence) and set(line) == {fence[0]}
