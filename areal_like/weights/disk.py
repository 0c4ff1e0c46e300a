"""Publishes and loads weights as folders: in shared memory on one node, else on a disk that all nodes see."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from areal_like.weights.bucket_files import Bytes, read_bucket
from areal_like.weights.buckets import (
    MAX_BUCKET_BYTES,
    bucket_file,
    bucket_hash,
    file_header,
    file_order,
    plan_buckets,
    publishable,
)
from areal_like.weights.fingerprint import describe_tensors, dtype_name
from areal_like.weights.flat_buckets import FlatWeights, as_tensor, write_bucket
from areal_like.weights.index import Bucket, Index, read_index, write_index
from areal_like.weights.probe import Probe
from areal_like.weights.verify import verify_index
from areal_like.weights.version_folders import final_folder, new_version

VERSION = re.compile(r"v(\d{6,})")
TEMPORARY = re.compile(r"\.v\d{6,}\.(\d+)\.(?:new|old)")

Expected = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Tensors of a model: name -> shape and type."""


class LoadedWeights(NamedTuple):
    """Weights with verified hashes. If the files are in shared memory, `tensors` are that memory: copy what is changed
    or kept."""

    version: int
    run_id: str
    tensors: dict[str, Tensor]
    hashes: dict[str, str]
    probe: Probe | None
    num_bytes: int


def publish_weights(
    folder_root: Path,
    version: int,
    tensors: Iterable[tuple[str, Tensor]],
    probe: Probe | None,
    run_id: str,
    max_bucket_bytes: int = MAX_BUCKET_BYTES,
    require: Callable[[], None] = lambda: None,
) -> Path:
    """Writes a version under a temporary name and renames it when it is complete. Tensors are read one bucket at a
    time. A folder of that version left by an earlier attempt is replaced. `require` is called before the rename."""
    with new_version(folder_root, version, require) as folder:
        buckets: list[Bucket] = []
        for number, bucket in enumerate(plan_buckets(publishable(tensors), max_bucket_bytes)):
            buckets.append(_write_bucket(folder / bucket_file(number), bucket))
            bucket.clear()  # or its tensors would be kept until the next bucket is complete
        write_index(folder, Index(version, run_id, buckets, probe))
    return final_folder(folder_root, version)


def write_weights(folder_root: Path, weights: FlatWeights, require: Callable[[], None] = lambda: None) -> Path:
    """The same for a copy of the weights, whose tensors are in main memory and have hashes."""
    with new_version(folder_root, weights.index.version, require) as folder:
        for bucket, content in zip(weights.index.buckets, weights.contents, strict=True):
            write_bucket(folder, bucket, content)
        write_index(folder, weights.index)
    return final_folder(folder_root, weights.index.version)


def _write_bucket(path: Path, bucket: list[tuple[str, Tensor]]) -> Bucket:
    infos, contents = describe_tensors(bucket)
    ordered = file_order(infos)
    header = file_header(ordered)
    with path.open("wb") as file:
        file.write(header)
        for info in ordered:
            file.write(contents[info.name])
        size = file.tell()
    return Bucket(path.name, size, bucket_hash(header, ordered), infos)


def load_version(folder: Path, expected: Expected, newer_than: int, run_id: str | None = None) -> LoadedWeights:
    """Reads a version and verifies the hash of every tensor. Refuses it unless it is newer, of this run (None: of any)
    and of this model."""
    index = read_index(folder)
    verify_index(index, with_dtype_names(expected), newer_than, run_id)
    contents: dict[str, Bytes] = {}
    for bucket in index.buckets:
        contents |= read_bucket(folder, bucket, index.version)
    infos = index.tensors
    return LoadedWeights(
        version=index.version,
        run_id=index.run_id,
        tensors={info.name: as_tensor(info, torch.from_numpy(contents[info.name])) for info in infos},
        hashes={info.name: info.hash for info in infos},
        probe=index.probe,
        num_bytes=sum(info.nbytes for info in infos),
    )


def with_dtype_names(expected: Expected) -> dict[str, tuple[tuple[int, ...], str]]:
    """The same without torch types."""
    return {name: (tuple(shape), dtype_name(dtype)) for name, (shape, dtype) in expected.items()}


def remove_versions(folder_root: Path, keep: set[int], require: Callable[[], None] = lambda: None) -> None:
    """Removes all versions but those in `keep`, and incomplete folders of dead publishers. `require` is called before
    each."""
    if not folder_root.is_dir():
        return
    for folder in sorted(folder_root.iterdir()):
        version, temporary = VERSION.fullmatch(folder.name), TEMPORARY.fullmatch(folder.name)
        if version and int(version[1]) not in keep:
            require()
            # Renamed first: readers never see an incomplete folder under a version's name.
            shutil.rmtree(folder.rename(folder_root / f".{folder.name}.{os.getpid()}.old"))
        elif temporary and int(temporary[1]) != os.getpid():
            require()
            shutil.rmtree(folder)
