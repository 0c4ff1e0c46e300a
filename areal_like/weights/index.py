"""The index of a publication: what is in it, in which file, with which hash."""

from pathlib import Path
from typing import Any, NamedTuple

import orjson

from areal_like.weights.buckets import DTYPES, TensorInfo
from areal_like.weights.errors import BadWeights
from areal_like.weights.probe import Probe

FILE = "index.json"


class Bucket(NamedTuple):
    """A file of the publication; `tensors` in the order in which they were given."""

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
    tensors = [
        {**info._asdict(), "bucket": number} for number, bucket in enumerate(index.buckets) for info in bucket.tensors
    ]
    said = {
        "version": index.version,
        "run_id": index.run_id,
        "buckets": [{"file": bucket.file, "bytes": bucket.bytes, "hash": bucket.hash} for bucket in index.buckets],
        "tensors": tensors,
        "probe": None if index.probe is None else index.probe._asdict(),
    }
    (folder / FILE).write_bytes(orjson.dumps(said))


def read_index(folder: Path) -> Index:
    path = folder / FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise BadWeights(f"{folder}: there is no complete publication of weights here ({FILE} is missing)") from None
    try:
        return _parse(orjson.loads(text))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadWeights(f"{path}: is damaged: {type(error).__name__}: {error}") from error


def _parse(said: Any) -> Index:
    buckets = [Bucket(str(bucket["file"]), int(bucket["bytes"]), str(bucket["hash"]), []) for bucket in said["buckets"]]
    for entry in said["tensors"]:
        info = TensorInfo(entry["name"], entry["dtype"], tuple(entry["shape"]), entry["hash"])
        if info.dtype not in DTYPES:
            raise ValueError(f"tensor {info.name} has the unknown type {info.dtype!r}")
        buckets[entry["bucket"]].tensors.append(info)
    probe = None if said["probe"] is None else Probe(said["probe"]["token_ids"], said["probe"]["logprobs"])
    return Index(int(said["version"]), str(said["run_id"]), buckets, probe)
