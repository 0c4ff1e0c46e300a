"""A message with arrays: a header in JSON, and parts of bytes that nobody on the way looks into."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

LENGTH_BYTES = 8


class Frame(NamedTuple):
    header: dict[str, Any]
    blobs: list[memoryview]


def pack(header: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """Length of the head, the head (header and sizes of the parts), the parts."""
    head = orjson.dumps({"header": header, "sizes": [len(blob) for blob in blobs]})
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *blobs])


def unpack(data: bytes | memoryview) -> Frame:
    view = memoryview(data)
    start = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    if start > len(view):
        raise ValueError("a message is shorter than its head says")
    head = orjson.loads(view[LENGTH_BYTES:start])
    blobs = []
    for size in head["sizes"]:
        if type(size) is not int or size < 0:
            raise ValueError("the size of a part is no whole number")
        blobs.append(view[start : start + size])
        start += size
    if start != len(view):
        raise ValueError("a message is not as long as its parts")
    return Frame(head["header"], blobs)
