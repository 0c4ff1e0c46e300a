"""Binary message: a JSON header and opaque parts of bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

LENGTH_BYTES = 8


class Frame(NamedTuple):
    header: dict[str, Any]
    blobs: list[memoryview]


def pack(header: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """Length of the head, the head (header and part sizes), the parts."""
    head = orjson.dumps({"header": header, "sizes": [len(blob) for blob in blobs]})
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *blobs])


def read_header(file: Path) -> dict[str, Any]:
    """Of a message in a file, without its parts."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        header: dict[str, Any] = orjson.loads(opened.read(length))["header"]
    return header


def unpack(data: bytes | memoryview) -> Frame:
    view = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    if start > len(view):
        raise ValueError("the message is shorter than its head states")
    head = orjson.loads(view[LENGTH_BYTES:start])
    blobs = []
    for size in head["sizes"]:
        if type(size) is not int or size < 0:
            raise ValueError("the size of a part is not a whole number")
        blobs.append(view[start : start + size])
        start += size
    if start != len(view):
        raise ValueError("the message's length is not that of its parts")
    return Frame(head["header"], blobs)
