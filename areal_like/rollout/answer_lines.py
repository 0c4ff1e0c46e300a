"""Answers that a user gives as JSON lines, with the place of each for messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_like.config.problems import ConfigError, Problem


def read_lines(file: Path) -> Iterator[tuple[str, Any]]:
    """Place and value of each line that is not empty; half of a surrogate pair is a question mark. Raises ConfigError,
    also where there is none."""
    try:
        lines = file.expanduser().read_bytes().splitlines()
    except OSError as fault:
        raise ConfigError([Problem(str(file), f"cannot be read: {fault.strerror}")]) from fault
    found = [(f"{file}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError([Problem(str(file), "has no answers")])
    for place, line in found:
        try:
            text = json.dumps(json.loads(line), ensure_ascii=False)
            yield place, json.loads(text.encode(errors="replace"))
        except ValueError as fault:
            raise ConfigError([Problem(place, f"is not a line of JSON: {fault}")]) from fault
