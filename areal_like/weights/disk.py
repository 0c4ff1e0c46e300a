"""Publications of weights as folders: in shared memory on one node, else on a disk that all nodes see."""

import mmap
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from areal_like.weights.buckets import MAX_BYTES, TensorInfo, bucket_hash, file_header, file_order, plan_buckets
from areal_like.weights.errors import BadWeights, count_by_layer, with_layer
from areal_like.weights.fingerprint import dtype_name, hash_of, raw_bytes
from areal_like.weights.index import Bucket, Index, read_index, write_index
from areal_like.weights.probe import Probe

MEMORY = Path("/dev/shm")
VERSION = re.compile(r"v(\d{6,})")
TEMPORARY = re.compile(r"\.v\d{6,}\.(\d+)\.(?:new|old)")

Expected = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""What a model wants: name -> shape and type."""


class Publication(NamedTuple):
    """Weights whose hashes were found right. Where `tensors` lie in shared memory they are that memory: copy what is to
    be changed or kept."""

    version: int
    run_id: str
    tensors: dict[str, Tensor]
    hashes: dict[str, str]
    probe: Probe | None
    num_bytes: int


def publish(
    folder_root: Path,
    version: int,
    tensors: Iterable[tuple[str, Tensor]],
    probe: Probe | None,
    run_id: str,
    max_bucket_bytes: int = MAX_BYTES,
) -> Path:
    """Writes a version under a temporary name and renames it when it is complete. Tensors are taken one bucket at a
    time. A folder of that version that is left over from an earlier attempt is replaced."""
    folder_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = folder_root / f"v{version:06d}"
    new, old = (folder_root / f".{final.name}.{os.getpid()}.{suffix}" for suffix in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)  # process ids come again
    new.mkdir(mode=0o700)
    try:
        buckets: list[Bucket] = []
        names: set[str] = set()
        for number, bucket in enumerate(plan_buckets(tensors, max_bucket_bytes)):
            for name in [name for name, _ in bucket]:
                if name in names:
                    raise ValueError(f"tensor {name} is given twice; tied weights are published once")
                names.add(name)
            buckets.append(_write_bucket(new / f"bucket-{number:03d}.safetensors", bucket))
            bucket.clear()  # or its tensors would be there until the next bucket is
        write_index(new, Index(version, run_id, buckets, probe))
        if final.exists():
            final.rename(old)
        new.rename(final)
    except OSError as error:
        said = error.strerror or str(error)
        raise OSError(error.errno, f"version {version} of the weights cannot be written: {said}", str(final)) from error
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
    return final


def _write_bucket(path: Path, bucket: list[tuple[str, Tensor]]) -> Bucket:
    infos, contents = [], {}
    for name, tensor in bucket:
        contents[name] = raw_bytes(tensor)
        dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
        infos.append(TensorInfo(name, dtype, shape, hash_of(dtype, shape, contents[name])))
    ordered = file_order(infos)
    header = file_header(ordered)
    with path.open("wb") as file:
        file.write(header)
        for info in ordered:
            file.write(contents[info.name])
        size = file.tell()
    return Bucket(path.name, size, bucket_hash(header, ordered), infos)


def load(folder: Path, expected: Expected, newer_than: int, run_id: str | None = None) -> Publication:
    """Reads a version, refuses it unless it is newer, of this run (None: of any) and of this model, and only returns
    it when the hash of every tensor is right."""
    index = read_index(folder)
    _check_turn(index, newer_than, run_id)
    _check_names(index, expected)
    tensors: dict[str, Tensor] = {}
    for bucket in index.buckets:
        tensors.update(_read_bucket(folder / bucket.file, bucket, index.version))
    infos = index.tensors
    return Publication(
        version=index.version,
        run_id=index.run_id,
        tensors={info.name: tensors[info.name] for info in infos},
        hashes={info.name: info.hash for info in infos},
        probe=index.probe,
        num_bytes=sum(info.nbytes for info in infos),
    )


def _check_turn(index: Index, newer_than: int, run_id: str | None) -> None:
    if run_id is not None and index.run_id != run_id:
        raise BadWeights(
            f"version {index.version} of the weights belongs to run {index.run_id}, and this is run {run_id}"
        )
    if index.version <= newer_than:
        raise BadWeights(
            f"version {index.version} of the weights is not newer than {newer_than}, which is served: it is stale"
        )


def _check_names(index: Index, expected: Expected) -> None:
    """All that is wrong, at once."""
    infos = {info.name: info for info in index.tensors}
    problems = []
    if missing := [name for name in expected if name not in infos]:
        problems.append(count_by_layer(missing, "missing"))
    if unexpected := [name for name in infos if name not in expected]:
        problems.append(count_by_layer(unexpected, "not in the server's model"))
    for name, info in infos.items():
        if name not in expected:
            continue
        shape, dtype = tuple(expected[name][0]), dtype_name(expected[name][1])
        if info.shape != shape:
            problems.append(f"{with_layer(name)} has shape {list(info.shape)} and not {list(shape)}")
        elif info.dtype != dtype:
            problems.append(f"{with_layer(name)} is {info.dtype} and not {dtype}")
    if not problems:
        return
    said = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
    raise BadWeights(
        f"version {index.version} of the weights: {said}. Trainer and server must hold the same model in the same "
        "precision"
    )


def _read_bucket(path: Path, bucket: Bucket, version: int) -> dict[str, Tensor]:
    of = f"version {version} of the weights: bucket {path.name}"
    size = path.stat().st_size if path.exists() else None
    if size != bucket.bytes:
        said = "is missing" if size is None else f"has {size} bytes and not {bucket.bytes}"
        raise BadWeights(f"{of} {said}, so it was not published whole, or changed since")
    ordered = file_order(bucket.tensors)
    header = file_header(ordered)
    content = _content(path, size)
    if content[: len(header)].numpy().tobytes() != header or bucket_hash(header, ordered) != bucket.hash:
        raise BadWeights(f"{of} is corrupted: its header is not the one that was published")
    tensors, at = {}, len(header)
    for info in ordered:
        part = content[at : at + info.nbytes]
        if hash_of(info.dtype, info.shape, part.numpy().data) != info.hash:
            raise BadWeights(
                f"version {version} of the weights: {with_layer(info.name)} is corrupted: its content in "
                f"{path.name} does not have the hash {info.hash} that it was published with"
            )
        tensors[info.name] = part.view(getattr(torch, info.dtype)).reshape(info.shape)
        at += info.nbytes
    return tensors


def _content(path: Path, size: int) -> Tensor:
    """The bytes of a file: as they lie where it is memory anyway, else read."""
    with path.open("rb", buffering=0) as file:
        if path.is_relative_to(MEMORY):
            return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        content = np.empty(size, dtype=np.uint8)
        view, read = content.data, 0
        while read < size and (count := file.readinto(view[read:])):
            read += count
    return torch.from_numpy(content)


def discard(folder_root: Path, keep: set[int]) -> None:
    """Removes the versions that are not to be kept, and what a publisher that died left half-written."""
    if not folder_root.is_dir():
        return
    for folder in sorted(folder_root.iterdir()):
        version, temporary = VERSION.fullmatch(folder.name), TEMPORARY.fullmatch(folder.name)
        if version and int(version[1]) not in keep:
            # Renamed first: what a reader still finds under a version's name is whole.
            shutil.rmtree(folder.rename(folder_root / f".{folder.name}.{os.getpid()}.old"))
        elif temporary and int(temporary[1]) != os.getpid():
            shutil.rmtree(folder)
