"""Sharded tensors in a folder of safetensors files: each rank writes its shards, and any number of ranks can load them.

The format is that of torch's distributed checkpoint (DCP) on safetensors, which its tools can read. Every rank plans by
itself: nothing is gathered or pickled, and no rank waits for another.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from areal_like.process.hashed_files import HashedFiles
from areal_like.training.file_split import split_by_size
from areal_like.training.host_copies import HostCopies
from areal_like.training.row_shards import local_tensor

MAX_FILE_BYTES = 1 << 28
"""Writing a file copies it in memory."""


@dataclass
class TensorShard:
    """A rank's shard of a tensor, copied to the host, so that the next update does not change it."""

    tensor: Tensor
    offsets: torch.Size
    shape: torch.Size
    """Of the full tensor; the shard begins at `offsets`."""


class StateMismatch(Exception):
    """The stored state does not match the target."""


def shard_of(key: str, tensor: Tensor, is_first: bool, memory: HostCopies) -> TensorShard | None:
    """Copied to `memory`. None where another rank writes the same values; a tensor that is not sharded is written by
    the first rank."""
    if not isinstance(tensor, DTensor) or tensor.device_mesh.size() == 1:
        if not is_first:
            return None
        return TensorShard(memory.copy(key, local_tensor(tensor)), torch.Size([0] * tensor.dim()), tensor.shape)
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "the tensor is not on this rank"
    if any(index and placement.is_replicate() for index, placement in zip(coordinate, tensor.placements, strict=True)):
        return None
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    if 0 in chunk.sizes:
        return None
    return TensorShard(memory.copy(key, tensor.to_local()), chunk.offsets, tensor.shape)


def write_shards(files: HashedFiles, folder: Path, shards: Mapping[str, TensorShard], rank: int) -> None:
    """Into separate files per rank, which are synced to disk on return, by torch's writer."""
    folder.mkdir(parents=True, exist_ok=True)
    if not shards:
        return
    writer = HuggingFaceStorageWriter(str(folder), _files(shards), save_distributed=True)
    writer.fs = _HashedFileSystem(files)
    plan = writer.prepare_local_plan(SavePlan([_item(name, shard) for name, shard in shards.items()]))
    plans_before = [SavePlan([])] * rank  # a file's name contains the index of its plan
    writer.write_data(writer.prepare_global_plan([*plans_before, plan])[-1], _ShardPlanner(shards)).wait()


def stored_tensors(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of the stored tensors."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    tensors = {name: each for name, each in metadata.items() if isinstance(each, TensorStorageMetadata)}
    return {name: (each.size, each.properties.dtype) for name, each in tensors.items()}


def load_into(folder: Path, tensors: dict[str, Any]) -> None:
    """Each rank loads its own part."""
    reader, planner = HuggingFaceStorageReader(str(folder)), DefaultLoadPlanner(flatten_state_dict=False)
    stored, shapes = reader.read_metadata(), stored_tensors(folder)
    for name, tensor in tensors.items():
        if name not in shapes:
            raise StateMismatch(f"{name} is missing")
        if (shape := shapes[name][0]) != tensor.shape:
            raise StateMismatch(f"{name} has the shape {tuple(shape)} instead of {tuple(tensor.shape)}")
    planner.set_up_planner(tensors, stored, is_coordinator=True)
    reader.set_up_storage_reader(stored, is_coordinator=True)
    (plan,) = reader.prepare_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _files(shards: Mapping[str, TensorShard]) -> dict[str, int]:
    """The number of each tensor's file, from 1."""
    files = split_by_size({name: shard.tensor for name, shard in shards.items()}, MAX_FILE_BYTES)
    return {name: number for number, names in enumerate(files, 1) for name in names}


def _item(name: str, shard: TensorShard) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=shard.offsets, sizes=shard.tensor.shape)
    data = TensorWriteData(chunk=chunk, properties=TensorProperties.create_from_tensor(shard.tensor), size=shard.shape)
    return WriteItem(index=MetadataIndex(name, shard.offsets), type=WriteItemType.SHARD, tensor_data=data)


class _HashedFileSystem(FileSystem):
    """Where torch's writer opens its files."""

    def __init__(self, files: HashedFiles) -> None:
        self._files = files

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        assert mode == "wb", mode
        with self._files.open(Path(path)) as stream:
            yield stream


class _ShardPlanner(DefaultSavePlanner):
    """Resolves the writer's plan to shards."""

    def __init__(self, shards: Mapping[str, TensorShard]) -> None:
        super().__init__()
        self._of_this_rank = shards

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self._of_this_rank[write_item.index.fqn].tensor
