"""A stream of its own for work on a GPU beside what the process computes there."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Neither waits for the other. What was begun is complete at the end. On a CPU there are no streams."""
    if device.type != "cuda":
        yield
        return
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        stream.synchronize()
