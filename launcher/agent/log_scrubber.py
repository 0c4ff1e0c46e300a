"""Removes secrets from the log of a process after they were written. What a process prints by Python's streams has
none; what it starts, and libraries, write to its descriptors directly."""

import os
from collections.abc import Iterable
from contextlib import suppress

CHUNK = 1 << 20


class LogScrubber:
    """Covers secrets in place, by as many asterisks: the writers of the file hold it open."""

    def __init__(self, path: str, secrets: Iterable[str]) -> None:
        self._path, self._read = path, 0
        self._secrets = [secret.encode(errors="surrogateescape") for secret in secrets]
        self._longest = max(map(len, self._secrets), default=1)

    def scrub(self) -> None:
        """What was written since the last time, and what may be the beginning of a secret before that."""
        if not self._path or not self._secrets:
            return
        with suppress(OSError), open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while self._read < size:
                begin = max(0, self._read - self._longest + 1)
                file.seek(begin)
                content = file.read(CHUNK + self._longest)
                self._cover([(begin + at, length) for at, length in self._found(content)])
                self._read = begin + len(content)

    def rotated(self, older: str) -> None:
        """The file was copied to another one and emptied."""
        self._path, path, self._read = older, self._path, 0
        self.scrub()
        self._path, self._read = path, 0

    def _found(self, content: bytes) -> Iterable[tuple[int, int]]:
        for secret in self._secrets:
            at = content.find(secret)
            while at >= 0:
                yield at, len(secret)
                at = content.find(secret, at + len(secret))

    def _cover(self, found: list[tuple[int, int]]) -> None:
        if found:
            with open(self._path, "r+b", 0) as file:
                for at, length in found:
                    os.pwrite(file.fileno(), b"*" * length, at)
