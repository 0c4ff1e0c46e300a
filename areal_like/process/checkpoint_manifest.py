"""What a checkpoint's folder must hold to count: every part with its size and hash, and a mark that it is complete.

Needs no torch: whoever starts a run picks its checkpoint by this.
"""

import json
import os
from pathlib import Path
from typing import Any

from areal_like.process.atomic_file import fsync_path, fsync_tree, write_atomic
from areal_like.process.checkpoint_layout import COMPLETE, KEPT, MANIFEST, RESUME

BLOCK_BYTES = 1 << 22


def hash_of(file: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_64()
    with file.open("rb") as stream:
        while piece := stream.read(BLOCK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def write_manifest(folder: Path, step: int) -> None:
    """Writes the manifest over all files that are there, then the mark. All of it is on the disk before the mark
    is, so that a checkpoint with its mark is whole after a power failure too."""
    found = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
    files = sorted(path for path in found if path.name not in (MANIFEST, COMPLETE, KEPT))
    parts = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "hash": hash_of(path)} for path in files}
    _write_manifest_file(folder, {"step": step, "hash": "xxh3_64", "parts": parts})
    fsync_tree(folder)
    (folder / COMPLETE).touch()
    fsync_path(folder / COMPLETE)
    fsync_path(folder)


def checkpoint_problems(folder: Path, with_hashes: bool = True) -> list[str]:
    """What is wrong with a checkpoint, part by part; nothing where it is as it was written. Without hashes it is only
    looked whether all is there in its size, which takes no time."""
    if not (folder / COMPLETE).is_file():
        return [f"{folder.name} was never completed"]
    try:
        parts = {
            name: (int(said["bytes"]), str(said["hash"])) for name, said in _read_manifest(folder)["parts"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        return [f"{folder.name}/{MANIFEST} cannot be read ({type(fault).__name__}: {fault})"]
    found = {
        name: _file_problem(folder / name, size, digest if with_hashes else None)
        for name, (size, digest) in parts.items()
    }
    return [f"{folder.name}/{name} {wrong}" for name, wrong in found.items() if wrong]


def _file_problem(file: Path, size: int, digest: str | None) -> str | None:
    if not file.is_file():
        return "is missing"
    if (found := file.stat().st_size) != size:
        return f"has {found} bytes instead of {size}"
    return "has other content than was written" if digest is not None and hash_of(file) != digest else None


def can_resume(folder: Path) -> bool:
    """Whether it was written to go on from, and still holds what that needs."""
    try:
        return (folder / COMPLETE).is_file() and any(
            name.startswith(f"{RESUME}/") for name in _read_manifest(folder)["parts"]
        )
    except (OSError, ValueError, KeyError):
        return False


def resume_problem(folder: Path, with_hashes: bool = False) -> str | None:
    """Why a complete checkpoint cannot be resumed from; None where it can."""
    if wrong := checkpoint_problems(folder, with_hashes):
        return "; ".join(wrong)
    return None if can_resume(folder) else f"{folder.name} has weights alone, and nothing to resume from"


def drop_resume_parts(folder: Path) -> list[Path]:
    """Takes what is needed to resume out of the manifest; returns what may be deleted then."""
    said = _read_manifest(folder)
    said["parts"] = {name: part for name, part in said["parts"].items() if not name.startswith(f"{RESUME}/")}
    _write_manifest_file(folder, said)
    return [folder / RESUME]


def _read_manifest(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return said


def _write_manifest_file(folder: Path, said: dict[str, Any]) -> None:
    write_atomic(folder / MANIFEST, json.dumps(said, indent=1) + "\n")
    fsync_path(folder)
