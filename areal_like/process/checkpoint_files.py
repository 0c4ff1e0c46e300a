"""A run's checkpoints on disk: folder names, marks, and the manifest with size and hash of every file.

Imports no torch: the launcher picks the checkpoint of a resume by it.
"""

import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from areal_like.process.atomic_file import fsync_path, fsync_tree, write_atomic
from areal_like.process.hashed_files import BLOCK_BYTES, FilePart

COMPLETE, KEPT, MANIFEST, RESUME = ".complete", ".kept", "manifest.json", "resume"
"""In a checkpoint's folder: the mark of a complete checkpoint, the mark of one that `saver` keeps, the list of its
files, and the folder with the resume state."""
TRAINER = "trainer.json"
"""In `resume`: the trainer's state that is not tensors."""
HASH_THREADS = 8
"""Files that are read at a time: a shared file system gives one reader a part of its speed."""
OTHER_CONTENT = "has other content than was written"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What a damaged manifest raises."""
CHECKPOINT_FOLDER = re.compile(r"step_(\d{6,})")


OnRead = Callable[[int], None]
"""Called with the size of each block that was read; may raise to end the reading."""
OnFault = Callable[[OSError], None]
"""Called with each error by which a disk does not give what a checkpoint holds: it may pass, other damage stays."""


def _nothing(_what: object) -> None:
    pass


def folder_name(step: int) -> str:
    return f"step_{step:06d}"


def step_of(name: str) -> int | None:
    """None for a folder that is not a checkpoint."""
    match = CHECKPOINT_FOLDER.fullmatch(name)
    return None if match is None else int(match[1])


def complete_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """Steps and folders of the complete checkpoints under `root`, oldest first."""
    names = os.listdir(root) if root.is_dir() else []
    steps = sorted((step, name) for name in names if (step := step_of(name)) is not None)
    return [(step, root / name) for step, name in steps if _is_marked(root / name)]


def _is_marked(folder: Path) -> bool:
    try:
        return (folder / COMPLETE).exists()
    except OSError:
        return True  # perhaps: the check of its files reports the fault


def attempt_of(checkpoint: Path) -> int:
    """The attempt of the run that wrote the checkpoint; 0 where unknown."""
    path = checkpoint / RESUME / TRAINER
    return int(json.loads(path.read_text(encoding="utf-8")).get("attempt", 0)) if path.is_file() else 0


def hash_of(file: Path, on_read: OnRead = _nothing) -> str:
    blocks = hash_blocks(file)
    while True:
        try:
            size = next(blocks)
        except StopIteration as end:
            return str(end.value)
        on_read(size)


def hash_blocks(file: Path) -> Generator[int, None, str]:
    """Hashes a file block by block: yields the size of each that was read, and returns the hash."""
    import xxhash

    digest = xxhash.xxh3_64()
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            yield len(block)
    return digest.hexdigest()


def write_manifest(folder: Path, step: int, written: Mapping[str, FilePart] = MappingProxyType({})) -> None:
    """Writes the manifest of all files in `folder`, then the mark. Everything is synced to disk before the mark, so
    that a marked checkpoint is complete after a power failure too. Only files that are not in `written` are read."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder, followlinks=True) for name in names)
    files = sorted(path for path in paths if path.name not in (MANIFEST, COMPLETE, KEPT))
    parts = {}
    for path in files:
        name, size = str(path.relative_to(folder)), path.stat().st_size
        part = written.get(name) or FilePart(size, hash_of(path))
        if part.bytes != size:
            raise OSError(f"{path} has {size} bytes instead of the {part.bytes} that were written")
        parts[name] = part._asdict()
    if absent := sorted(written.keys() - parts.keys()):
        what = f"{folder / absent[0]} was written, perhaps by a rank of another node, and is not there"
        raise OSError(f"{what}; cluster.fileroot must be on a disk that all nodes share")
    _write_manifest_file(folder, {"step": step, "hash": "xxh3_64", "parts": parts})
    fsync_tree(folder)
    (folder / COMPLETE).touch()
    fsync_path(folder / COMPLETE)
    fsync_path(folder)


def checkpoint_problems(
    folder: Path, with_hashes: bool = True, on_read: OnRead = _nothing, on_fault: OnFault = _nothing
) -> list[str]:
    """What is missing or damaged in a checkpoint, file by file. Without hashes only names and sizes are compared."""
    try:
        if not (folder / COMPLETE).is_file():
            return [f"{folder.name} was never completed"]
        parts = manifest_parts(folder)
    except UNREADABLE as fault:
        if isinstance(fault, OSError) and not isinstance(fault, FileNotFoundError):
            on_fault(fault)
        return [f"{folder.name}/{MANIFEST} cannot be read ({type(fault).__name__}: {fault})"]

    def problem_of(name: str) -> str | None:
        digest = parts[name].hash if with_hashes else None
        try:
            return _file_problem(folder / name, parts[name].bytes, digest, on_read)
        except FileNotFoundError:
            return "is missing"  # removed meanwhile
        except OSError as fault:
            on_fault(fault)
            return f"cannot be read ({fault.strerror or fault})"

    problems = zip(parts, _in_threads(problem_of, parts) if with_hashes else map(problem_of, parts), strict=True)
    return [f"{folder.name}/{name} {problem}" for name, problem in problems if problem]


def _in_threads(problem_of: Callable[[str], str | None], names: Iterable[str]) -> list[str | None]:
    from concurrent.futures import ThreadPoolExecutor  # not for a dry run

    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return list(pool.map(problem_of, names))


def manifest_parts(folder: Path) -> dict[str, FilePart]:
    """The files of a complete checkpoint, by their names in it."""
    parts = _read_manifest(folder)["parts"]
    return {name: FilePart(int(part["bytes"]), str(part["hash"])) for name, part in parts.items()}


def _file_problem(file: Path, size: int, digest: str | None, on_read: OnRead) -> str | None:
    if not file.is_file():
        return "is missing"
    if (actual := file.stat().st_size) != size:
        return f"has {actual} bytes instead of {size}"
    return OTHER_CONTENT if digest is not None and hash_of(file, on_read) != digest else None


def can_resume(folder: Path) -> bool:
    """Whether the checkpoint was written with resume state and still has it."""
    try:
        parts = manifest_parts(folder) if (folder / COMPLETE).is_file() else {}
    except UNREADABLE:
        return False
    return any(name.startswith(f"{RESUME}/") for name in parts)


def resume_problem(
    folder: Path, with_hashes: bool = False, on_read: OnRead = _nothing, on_fault: OnFault = _nothing
) -> str | None:
    """Why a complete checkpoint cannot be resumed from; None where it can."""
    if problems := checkpoint_problems(folder, with_hashes, on_read, on_fault):
        return "; ".join(problems)
    return None if can_resume(folder) else f"{folder.name} has weights alone, and nothing to resume from"


def drop_resume_parts(folder: Path) -> list[Path]:
    """Removes the resume state from the manifest; returns the paths to delete afterwards."""
    manifest = _read_manifest(folder)
    manifest["parts"] = {name: part for name, part in manifest["parts"].items() if not name.startswith(f"{RESUME}/")}
    _write_manifest_file(folder, manifest)
    return [folder / RESUME]


def has_dropped_parts(folder: Path) -> bool:
    """Whether a complete checkpoint has resume state that its manifest does not name any more."""
    if not os.path.lexists(folder / RESUME):
        return False
    try:
        return not any(name.startswith(f"{RESUME}/") for name in manifest_parts(folder))
    except UNREADABLE:
        return False


def complete_replacements(root: Path) -> None:
    """Of a checkpoint that was written again: a kill between the renames has left neither version at its place."""
    for aside in root.glob(".step_*.gone"):
        target = root / aside.name.split(".")[1]
        written = [each for each in root.glob(f".{target.name}.*.half") if (each / COMPLETE).is_file()]
        if written and CHECKPOINT_FOLDER.fullmatch(target.name) and not target.exists():
            max(written, key=lambda each: (each / COMPLETE).stat().st_mtime).rename(target)
            fsync_path(root)


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _write_manifest_file(folder: Path, manifest: dict[str, Any]) -> None:
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    fsync_path(folder)
