"""Terminal output: colours (unless NO_COLOR is set), width, lines that survive a closed stream."""

import os
import sys
from typing import TextIO


def has_color(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def write_line(text: str, stream: TextIO) -> None:
    """Prints a line; ignores a stream that was closed."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if has_color(sys.stdout) else text


def red(text: str, stream: TextIO) -> str:
    return f"\x1b[31m{text}\x1b[0m" if has_color(stream) else text


def width() -> int:
    import shutil  # `--help` does without

    return min(shutil.get_terminal_size((100, 24)).columns, 120)
