"""The fenced blocks of an answer, and its program: the last one of Python."""

import re
from collections.abc import Iterable, Iterator
from textwrap import dedent

OPENING = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}+|~{3,}+)\s*+(?P<language>[\w+-]*+)[^`]*+")
IN_TEXT = re.compile(r"```([\w+-]*+)[^\S\n]*+\n(.*?)```", re.DOTALL)
PYTHON = ("py", "python", "python3")


def last_python_block(completion: str) -> str | None:
    """None if there is none; one that is cut off is none. One without a label, which may be the output of an example,
    counts only where none is labelled. Blocks in text count only where there is no other."""
    found = _last_python(fenced_blocks(completion))
    if found is None:
        found = _last_python(blocks_in_text(completion))
    return None if found is None else found.encode("utf-8", "replace").decode()


def _last_python(blocks: Iterable[tuple[str, str]]) -> str | None:
    labelled: str | None = None
    unlabelled: str | None = None
    for language, content in blocks:
        if language in PYTHON:
            labelled = content
        elif not language:
            unlabelled = content
    return unlabelled if labelled is None else labelled


def fenced_blocks(completion: str) -> Iterator[tuple[str, str]]:
    """Label in lower case, and content. One that is cut off is none."""
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in completion.split("\n"):
        if opening is None:
            opening, lines = OPENING.fullmatch(line), []
        elif _closes(line.strip(), opening["fence"]):
            yield opening["language"].lower(), "\n".join((*lines, ""))
            opening = None
        else:
            indent = len(line) - len(line.lstrip(" "))
            lines.append(line[min(indent, len(opening["indent"])) :])


def blocks_in_text(completion: str) -> Iterator[tuple[str, str]]:
    """As `fenced_blocks`, but their fences stand beside other text, or are indented as in a list."""
    for label, content in IN_TEXT.findall(completion):
        yield label.lower(), dedent(content)


def _closes(line: str, fence: str) -> bool:
    return line.startswith(fence) and set(line) == {fence[0]}
