"""Index of a publication: its tensors with files and hashes."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from areal_like.process.errors import Failure
from areal_like.process.run_memory import check_run_memory_of
from areal_like.weights.buckets import DTYPES, TensorInfo
from areal_like.weights.errors import BadWeights
from areal_like.weights.lora import CONFIG_FILE, TENSORS_FILE
from areal_like.weights.probe import Probe, dump_probe, load_probe

INDEX_FILE = "index.json"
BUCKET_FILE = re.compile(r"bucket-[0-9]{3,}\.safetensors")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""File names and run ids become parts of paths, and may come from another process."""


class Bucket(NamedTuple):
    """A file of the publication; `tensors` are in publication order."""

    file: str
    bytes: int
    hash: str
    tensors: list[TensorInfo]


class Index(NamedTuple):
    version: int
    run_id: str
    buckets: list[Bucket]
    probe: Probe | None

    @property
    def tensors(self) -> list[TensorInfo]:
        return [info for bucket in self.buckets for info in bucket.tensors]


def write_index(folder: Path, index: Index) -> None:
    (folder / INDEX_FILE).write_bytes(orjson.dumps(dump_index(index)))


def dump_index(index: Index) -> dict[str, Any]:
    """The index as JSON values, for a file or a request."""
    tensors = [
        {**_dump_tensor(info), "bucket": number}
        for number, bucket in enumerate(index.buckets)
        for info in bucket.tensors
    ]
    return {
        "version": index.version,
        "run_id": index.run_id,
        "buckets": [{"file": bucket.file, "bytes": bucket.bytes, "hash": bucket.hash} for bucket in index.buckets],
        "tensors": tensors,
        "probe": None if index.probe is None else dump_probe(index.probe),
    }


def _dump_tensor(info: TensorInfo) -> dict[str, Any]:
    return {name: value for name, value in info._asdict().items() if name != "checksum" or value}


def read_index(folder: Path) -> Index:
    path = folder / INDEX_FILE
    try:
        check_run_memory_of(folder)
        text = path.read_bytes()
    except FileNotFoundError:
        raise BadWeights(f"{folder}: is not a complete publication of weights ({INDEX_FILE} is missing)") from None
    except Failure as not_ours:
        raise BadWeights(str(not_ours)) from not_ours
    try:
        content = orjson.loads(text)
    except ValueError as error:
        raise BadWeights(f"{path}: is damaged: {type(error).__name__}: {error}") from error
    return parse_index(content, str(path))


def parse_index(content: Any, where: str) -> Index:
    """Parses what `dump_index` wrote. `where`: its source, for messages."""
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadWeights(f"{where}: is damaged: {type(error).__name__}: {error}") from error


def _parse(content: Any) -> Index:
    buckets = [
        Bucket(_file(str(bucket["file"])), int(bucket["bytes"]), str(bucket["hash"]), [])
        for bucket in content["buckets"]
    ]
    for entry in content["tensors"]:
        info = TensorInfo(
            entry["name"], entry["dtype"], tuple(entry["shape"]), entry["hash"], entry.get("checksum", "")
        )
        if info.dtype not in DTYPES:
            raise ValueError(f"tensor {info.name} has the unknown type {info.dtype!r}")
        buckets[entry["bucket"]].tensors.append(info)
    probe = None if content["probe"] is None else load_probe(content["probe"])
    return Index(int(content["version"]), _run_id(str(content["run_id"])), buckets, probe)


def _file(name: str) -> str:
    if name in (CONFIG_FILE, TENSORS_FILE) or BUCKET_FILE.fullmatch(name):
        return name
    raise ValueError(f"{name[:100]!r} is not a file name of a publication")


def _run_id(name: str) -> str:
    if RUN_ID.fullmatch(name):
        return name
    raise ValueError(f"{name[:100]!r} is not a run id")
