"""What a process prints stands in its log: known secrets are removed from it first."""

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from areal_like.config.redact import SECRET, is_secret_name, remove_secrets, written_forms
from areal_like.process.identity import taken_token

SECRET_NAMES = "AREAL_LIKE_SECRET_NAMES"
"""Names of variables that the launcher has read from files with secrets, or to which secrets of the configuration
refer."""
_of_configuration: set[str] = set()


class ScrubbedStream:
    """A text stream without known secrets; a value that is written in parts is not recognized."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.secrets = stream, known_secrets()

    def write(self, text: str) -> int:
        self._stream.write(remove_secrets(text, self.secrets))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ScrubbedBytes:
    """What another process prints, without the secrets that this one knows, also where reads cut them: what may be the
    beginning of one is kept until more is read."""

    def __init__(self) -> None:
        self._secrets = tuple(secret.encode(errors="surrogateescape") for secret in known_secrets())
        self._firsts = {secret[0] for secret in self._secrets}
        self._kept = b""

    def read(self, content: bytes) -> bytes:
        text = self._kept + content
        end = self._begun(text)
        self._kept = text[end:]
        return self._without(text[:end])

    def rest(self) -> bytes:
        """At the end."""
        rest, self._kept = self._kept, b""
        return self._without(rest)

    def _without(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, SECRET.encode())
        return text

    def _begun(self, text: bytes) -> int:
        """Where the end starts with which a longer secret may begin, and a secret that reaches into it."""
        end = len(text)
        longest = max(map(len, self._secrets), default=1) - 1
        for at in range(max(0, end - longest), end):
            if text[at] in self._firsts and any(
                len(secret) > end - at and secret.startswith(text[at:]) for secret in self._secrets
            ):
                reaching = (text.find(each, max(0, at - len(each) + 1), at + len(each) - 1) for each in self._secrets)
                return min((start for start in reaching if start >= 0), default=at)
        return end


def scrubbed(text: str) -> str:
    return remove_secrets(text, known_secrets())


def without_secrets(value: Any, secrets: tuple[str, ...]) -> Any:
    """The same lists and mappings, with texts that hold none of these."""
    if isinstance(value, str):
        return remove_secrets(value, secrets)
    if isinstance(value, list):
        return [without_secrets(each, secrets) for each in value]
    if isinstance(value, dict):
        return {name: without_secrets(each, secrets) for name, each in value.items()}
    return value


def scrub_output() -> None:
    """Removes known secrets from what this process and its forks print by Python's streams."""
    sys.stdout, sys.stderr = ScrubbedStream(sys.stdout), ScrubbedStream(sys.stderr)


def know_secrets(values: Iterable[str]) -> None:
    """Secrets of a configuration, also of variables that are not named like one. References are none."""
    _of_configuration.update(value for value in values if "${" not in value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, ScrubbedStream):
            stream.secrets = known_secrets()


def known_secrets() -> tuple[str, ...]:
    """Values of variables with secret names, and of those in SECRET_NAMES, those of the configuration, and the run's
    token, in all forms; longest first."""
    named = os.environ.get(SECRET_NAMES, "").split(",")
    values = {value for name, value in os.environ.items() if name in named or is_secret_name(name)}
    return written_forms({*values, taken_token(), *_of_configuration})
