"""The program in an answer: its last fenced block of Python."""

import re

OPENING = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}+|~{3,}+)\s*+(?P<language>[\w+-]*+)[^`]*+")
PYTHON = ("py", "python", "python3")


def last_python_block(completion: str) -> str | None:
    """None if there is none; one that is cut off is none. One without a label, which may be the output of an example,
    counts only where none is labelled."""
    labelled: str | None = None
    unlabelled: str | None = None
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in completion.split("\n"):
        if opening is None:
            opening, lines = OPENING.fullmatch(line), []
        elif _closes(line.strip(), opening["fence"]):
            program = "\n".join((*lines, ""))
            if opening["language"].lower() in PYTHON:
                labelled = program
            elif not opening["language"]:
                unlabelled = program
            opening = None
        else:
            indent = len(line) - len(line.lstrip(" "))
            lines.append(line[min(indent, len(opening["indent"])) :])
    found = unlabelled if labelled is None else labelled
    return None if found is None else found.encode("utf-8", "replace").decode()


def _closes(line: str, fence: str) -> bool:
    return line.startswith(fence) and set(line) == {fence[0]}
