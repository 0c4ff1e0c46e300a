"""Files that are there whole, or not at all."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    half = path.with_name(f".{path.name}.half")
    with half.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
