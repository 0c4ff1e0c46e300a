"""What a process prints stands in its log: known secrets are removed from it first."""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from areal_like.config.redact import MIN_SECRET_LENGTH, is_secret_name, remove_secrets
from areal_like.process.identity import taken_token

SECRET_NAMES = "AREAL_LIKE_SECRET_NAMES"
"""Names of variables that the launcher has read from files with secrets."""


class ScrubbedStream:
    """A text stream without these values; a value that is written in parts is not recognized."""

    def __init__(self, stream: TextIO, secrets: tuple[str, ...]) -> None:
        self._stream, self._secrets = stream, secrets

    def write(self, text: str) -> int:
        self._stream.write(remove_secrets(text, self._secrets))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def scrubbed(text: str) -> str:
    return remove_secrets(text, _known_secrets())


def scrub_output() -> None:
    """Removes known secrets from what this process and its forks print by Python's streams."""
    if secrets := _known_secrets():
        sys.stdout = ScrubbedStream(sys.stdout, secrets)
        sys.stderr = ScrubbedStream(sys.stderr, secrets)


def _known_secrets() -> tuple[str, ...]:
    """Values of variables with secret names, and of those in SECRET_NAMES, and the run's token; longest first."""
    named = os.environ.get(SECRET_NAMES, "").split(",")
    values = {value for name, value in os.environ.items() if name in named or is_secret_name(name)}
    values.add(taken_token())
    return tuple(sorted((value for value in values if len(value) >= MIN_SECRET_LENGTH), key=len, reverse=True))
