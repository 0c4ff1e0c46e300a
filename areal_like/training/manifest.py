"""What a checkpoint's folder must hold to count: every part with its size and hash, and a mark that it is complete.

Needs no torch: whoever starts a run picks its checkpoint by this.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

MANIFEST, COMPLETE, KEPT, RESUME = "manifest.json", ".complete", ".kept", "resume"
FOLDER = re.compile(r"step_(\d{6,})")
PIECE = 1 << 22


def folder_name(step: int) -> str:
    return f"step_{step:06d}"


def step_of(folder: Path) -> int:
    found = FOLDER.fullmatch(folder.name)
    if found is None:
        raise ValueError(f"{folder} is no checkpoint: its name must be like {folder_name(120)}")
    return int(found[1])


def hash_of(file: Path) -> str:
    digest = xxhash.xxh3_64()
    with file.open("rb") as stream:
        while piece := stream.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def seal(folder: Path, step: int) -> None:
    """Writes the manifest over all files that are there, then the mark."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, COMPLETE, KEPT))
    parts = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "hash": hash_of(path)} for path in files}
    _write(folder, {"step": step, "hash": "xxh3_64", "parts": parts})
    (folder / COMPLETE).touch()


def complaints(folder: Path) -> list[str]:
    """What is wrong with a checkpoint, part by part; nothing where it is as it was written."""
    if not (folder / COMPLETE).is_file():
        return [f"{folder.name}: it was never completed"]
    try:
        parts = _read(folder)["parts"]
    except (OSError, ValueError, KeyError) as fault:
        return [f"{folder.name}/{MANIFEST}: cannot be read: {fault}"]
    return [f"{folder.name}/{name}: {wrong}" for name, said in parts.items() if (wrong := _wrong(folder / name, said))]


def _wrong(file: Path, said: dict[str, Any]) -> str | None:
    if not file.is_file():
        return "is missing"
    if (size := file.stat().st_size) != said["bytes"]:
        return f"has {size} bytes instead of {said['bytes']}"
    return None if hash_of(file) == said["hash"] else "has other content than was written"


def can_resume(folder: Path) -> bool:
    """Whether it was written to go on from, and still holds what that needs."""
    try:
        return (folder / COMPLETE).is_file() and any(name.startswith(f"{RESUME}/") for name in _read(folder)["parts"])
    except (OSError, ValueError, KeyError):
        return False


def checkpoints_in(root: Path) -> Iterator[Path]:
    """The checkpoints that were completed, the newest first."""
    found = [path for path in root.glob("step_*") if FOLDER.fullmatch(path.name) and (path / COMPLETE).is_file()]
    yield from sorted(found, key=step_of, reverse=True)


def forget_resume(folder: Path) -> list[Path]:
    """Takes what is needed to resume out of the manifest; returns what may be deleted then."""
    said = _read(folder)
    said["parts"] = {name: part for name, part in said["parts"].items() if not name.startswith(f"{RESUME}/")}
    _write(folder, said)
    return [folder / RESUME]


def _read(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return said


def _write(folder: Path, said: dict[str, Any]) -> None:
    half = folder / f"{MANIFEST}.half"
    half.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    half.replace(folder / MANIFEST)
