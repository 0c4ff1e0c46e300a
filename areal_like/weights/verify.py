"""Verifies published weights without torch: version, names, shapes, and every hash."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from areal_like.weights.bucket_files import Bytes, check_version, read_bucket
from areal_like.weights.buckets import DTYPES, TensorInfo, bucket_hash, file_header, file_order, places
from areal_like.weights.errors import BadWeights, count_by_layer, with_layer
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import Bucket, Index, read_index

Expected = Mapping[str, tuple[tuple[int, ...], str]]
"""Tensors of a model: name -> shape and type."""

DTYPE_OF_CODE = {kind.code: name for name, kind in DTYPES.items()}


def verify_publication(folder: Path, expected: Expected | None, newer_than: int, run_id: str | None = None) -> Index:
    """Refuses a publication unless it is newer, of this run (None: of any), of this model (None: of any) and complete,
    with the right hash of every tensor."""
    index = read_index(folder)
    verify_index(index, expected, newer_than, run_id)
    for bucket in index.buckets:
        read_bucket(folder, bucket, index.version)
    return index


def verify_index(index: Index, expected: Expected | None, newer_than: int, run_id: str | None = None) -> None:
    """The same as far as the index alone can show."""
    check_version(index, newer_than, run_id)
    if expected is not None:
        _check_names(index, expected)


def verify_bucket(bucket: Bucket, content: Bytes, version: int) -> None:
    """Refuses a received bucket (the content of its file after the header) unless it is what was published."""
    check_index(bucket, version)
    for info, place in places(bucket.tensors):
        if hash_of(info.dtype, info.shape, content[place].data) != info.hash:
            raise corrupted(info, f"hash {info.hash}", version)


def check_index(bucket: Bucket, version: int) -> None:
    """Refuses a received bucket whose tensors are not those that were published."""
    ordered = file_order(bucket.tensors)
    if bucket_hash(file_header(ordered), ordered) != bucket.hash:
        raise BadWeights(
            f"version {version} of the weights: bucket {bucket.file} is corrupted: its index is not the one that was "
            "published"
        )


def corrupted(info: TensorInfo, published: str, version: int) -> BadWeights:
    """A received tensor is not what was published."""
    return BadWeights(
        f"version {version} of the weights: {with_layer(info.name)} is corrupted: what was received does not have the "
        f"{published} that it was published with"
    )


def payload_bytes(bucket: Bucket) -> int:
    """Size of a bucket without the header, as it is sent."""
    return sum(info.nbytes for info in bucket.tensors)


def checkpoint_tensors(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Tensors in a model's folder: name -> shape and type. Raises ValueError if it has no safetensors files."""
    tensors = dict(_headers(folder))
    if not tensors:
        raise ValueError(f"{folder}: holds no safetensors files, whose headers have names and shapes")
    return tensors


def _headers(folder: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = orjson.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                code = entry["dtype"]
                yield name, (tuple(entry["shape"]), DTYPE_OF_CODE.get(code, code))


def _check_names(index: Index, expected: Expected) -> None:
    """Reports all mismatches at once."""
    infos = {info.name: info for info in index.tensors}
    problems = []
    if missing := [name for name in expected if name not in infos]:
        problems.append(count_by_layer(missing, "missing"))
    if unexpected := [name for name in infos if name not in expected]:
        problems.append(count_by_layer(unexpected, "not in the server's model"))
    for name, info in infos.items():
        if name not in expected:
            continue
        shape, dtype = tuple(expected[name][0]), expected[name][1]
        if info.shape != shape:
            problems.append(f"{with_layer(name)} has shape {list(info.shape)} and not {list(shape)}")
        elif info.dtype != dtype:
            problems.append(f"{with_layer(name)} is {info.dtype} and not {dtype}")
    if not problems:
        return
    text = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
    raise BadWeights(
        f"version {index.version} of the weights: {text}. Trainer and server must hold the same model in the same "
        "precision"
    )
