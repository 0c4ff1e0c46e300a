"""Lines that a process of a run adds to a file, for the launcher to show."""

from pathlib import Path


class AddedLines:
    """Those that are added to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> list[str]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode("utf-8", "replace").split("\n")
