"""Records what a program writes and syncs below a folder, and builds what a crash of the machine may leave of it.

Of files only what was synced is sure, and of a folder only the entries that were made before it was synced. Everything
else may be there, be lost, or be there in part: a file that was never synced may be empty or cut.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
Keep = Callable[[int], bool]
"""Whether an operation that is not synced survives, by its number."""


class Operation(NamedTuple):
    """`kind`: write, mkdir, remove, rename (to `other`), symlink (to `other`) or sync (of a file's `content`)."""

    kind: str
    path: str
    other: str = ""
    content: bytes | None = None


class Record:
    """The operations below a folder, in their order, with what was there before."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.folders = [str(path) for path in sorted(Path(self.root).rglob("*")) if path.is_dir()]
        self.operations: list[Operation] = []

    def add(self, kind: str, path: str, other: str = "", content: bytes | None = None) -> None:
        if path.startswith(self.root + os.sep) or path == self.root:
            self.operations.append(Operation(kind, path, other, content))


_record: Record | None = None
_is_hooked = False


def _on_event(event: str, words: tuple[Any, ...]) -> None:
    if (record := _record) is None:
        return
    if event == "open" and not isinstance(words[0], int) and words[2] & WRITES:
        record.add("write", _real(words[0]))
    elif event == "os.mkdir":
        record.add("mkdir", _real(words[0], words[2]))
    elif event in ("os.remove", "os.rmdir"):
        record.add("remove", _real(words[0], words[1]))
    elif event == "os.rename":
        record.add("rename", _real(words[0], words[2]), _real(words[1], words[3]))
    elif event == "os.symlink":
        record.add("symlink", _real(words[1], words[2]), os.fspath(words[0]))


def _real(path: Any, folder: int = -1) -> str:
    """With links in its folder followed, as the system does; the last part may be a link itself."""
    whole = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder != -1 else "", os.fspath(path))
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


@contextmanager
def recording(root: Path) -> Iterator[Record]:
    """Of this process, in all its threads."""
    global _record, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_on_event)
        _is_hooked = True
    sync, record = os.fsync, Record(root)

    def noted(file: Any) -> None:
        sync(file)
        path = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
        content = None if os.path.isdir(path) else _content(path)
        record.add("sync", path, content=content)

    setattr(os, "fsync", noted)  # noqa: B010
    _record = record
    try:
        yield record
    finally:
        setattr(os, "fsync", sync)  # noqa: B010
        _record = None


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class _Node:
    """A file, a folder or a link."""

    def __init__(self, kind: str, target: str = "") -> None:
        self.kind, self.target = kind, target
        self.entries: dict[str, _Node] = {}
        self.synced_at: list[int] = []
        self.contents: list[tuple[int, bytes | None]] = []
        """With the number of the operation; None: written, and not synced."""


class Crashes:
    """What may be left after each of the operations."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._root = _Node("folder")
        self._changes: list[tuple[int, list[tuple[_Node, str, _Node | None]]]] = []
        for folder in record.folders:
            self._change(-1, (folder, _Node("folder")))
        for number, operation in enumerate(record.operations):
            self._apply(number, operation)

    def _parts(self, path: str) -> list[str]:
        return [part for part in os.path.relpath(path, self.record.root).split(os.sep) if part != "."]

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for part in self._parts(path):
            node = None if node is None else node.entries.get(part)
        return node

    def _change(self, number: int, *places: tuple[str, _Node | None]) -> None:
        made = []
        for path, node in places:
            folder, name = self._find(os.path.dirname(path)), os.path.basename(path)
            assert folder is not None, path
            made.append((folder, name, node))
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node
        self._changes.append((number, made))

    def _apply(self, number: int, operation: Operation) -> None:
        kind, path, other, content = operation
        node = self._find(path)
        if kind != "sync" and self._find(os.path.dirname(path)) is None:
            return  # it failed: its folder was made afterwards
        if kind == "write":
            if node is None:
                node = _Node("file")
                self._change(number, (path, node))
            node.contents.append((number, None))
        elif kind == "sync":
            assert node is not None, path
            if node.kind == "folder":
                node.synced_at.append(number)
            else:
                node.contents.append((number, content))
        elif kind in ("mkdir", "symlink") and node is None:
            self._change(number, (path, _Node("folder" if kind == "mkdir" else "link", other)))
        elif kind == "remove" and node is not None:
            self._change(number, (path, None))
        elif kind == "rename" and node is not None:
            self._change(number, (path, None), (other, node))

    def entries_after(self, count: int, keep: Keep) -> dict[_Node, dict[str, _Node]]:
        """By folder, where the machine crashes after so many operations."""
        left: dict[_Node, dict[str, _Node]] = {}
        for number, places in self._changes:
            if number >= count:
                break
            synced = all(any(number < each < count for each in folder.synced_at) for folder, _, _ in places)
            if number >= 0 and not synced and not keep(number):
                continue
            for folder, name, node in places:
                entries = left.setdefault(folder, {})
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
        return left

    def write(self, target: Path, count: int, keep: Keep) -> str:
        """Builds what is left in `target`; returns what tells it from other remains."""
        left, seen = self.entries_after(count, keep), []

        def build(node: _Node, path: Path) -> None:
            if node.kind == "folder":
                path.mkdir()
                for name, child in left.get(node, {}).items():
                    build(child, path / name)
            elif node.kind == "link":
                path.symlink_to(node.target.replace(self.record.root, str(target), 1))
            else:
                content = _survived(node, count, keep)
                path.write_bytes(content)
                seen.append(f"{path} {hash(content)}")

        build(self._root, target)
        return "\n".join(sorted(seen))


def _survived(node: _Node, count: int, keep: Keep) -> bytes:
    states = [each for each in node.contents if each[0] < count]
    if not states:
        return b""
    number, content = states[-1]
    if content is not None:
        return content
    written = next((later for at, later in node.contents if at > number and later is not None), b"")
    return written[: len(written) // 2] if keep(number) else b""


def nothing(_number: int) -> bool:
    return False


def everything(_number: int) -> bool:
    return True


def some(seed: int) -> Keep:
    return lambda number: random.Random(f"{seed} {number}").random() < 0.5
