"""Packages of trackers for tests: stand-ins that record every call, and readers of the real ones' files."""

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BLOCK, HEADER = 32768, 7
FULL, FIRST, LAST = 1, 2, 4


class Package:
    """Stand-in for wandb or swanlab."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[Any, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            places: dict[Any, Any] = dict(enumerate(words))
            self.calls.append((name, places | named))
            return SimpleNamespace(**named) if name == "Settings" else self

        return call

    def named(self, name: str) -> list[dict[Any, Any]]:
        return [arguments for called, arguments in self.calls if called == name]


def tensorboard_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def tensorboard_values(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in tensorboard_events(folder).Scalars(tag)]


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file, as the package's own messages. Its Python reader is gone since 0.31: the file is a
    LevelDB log, and `wandb sync` reads it in Go."""
    record_type = import_module("wandb.proto.wandb_internal_pb2").Record
    data, at, whole = file.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        chunk = data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        whole = chunk if kind in (FULL, FIRST) else whole + chunk
        if kind in (FULL, LAST):
            record = record_type()
            record.ParseFromString(whole)
            yield record


def wandb_history(file: Path) -> list[dict[str, Any]]:
    """What was logged, call by call; a nested name is joined by a dot."""
    rows = [record.history for record in wandb_records(file) if record.WhichOneof("record_type") == "history"]
    return [{".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in rows]


def swanlab_records(file: Path) -> Iterator[Any]:
    record_type = import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record
    reader = import_module("swanlab.sdk.internal.core_python.store").DataStoreReader()
    reader.open(file)
    while (data := reader.scan()) is not None:
        record = record_type()
        record.ParseFromString(data)
        yield record
    reader.close()
