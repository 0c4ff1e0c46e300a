"""Tensors that are spread over the ranks, in a folder of safetensors files: each rank writes the parts that it holds,
and any number of ranks read them again.

It is the storage for safetensors of torch's distributed checkpoint (DCP), whose files its other tools read too. Every
rank plans for itself: nothing is gathered, nothing pickled, and no rank waits for another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from areal_like.training.file_split import split_by_size

MAX_FILE_BYTES = 1 << 28
"""Of a file: what is written goes through a copy in memory, file by file."""


@dataclass
class TensorShard:
    """What a rank holds of a tensor: on the host, so that the next update does not change it."""

    tensor: Tensor
    offsets: torch.Size
    shape: torch.Size
    """Of the whole tensor, where this part begins at `offsets`."""


class StateMismatch(Exception):
    """What is stored does not fit where it is to go."""


def shard_of(tensor: Tensor, is_first: bool) -> TensorShard | None:
    """None where another rank has the same; what is not spread is the first rank's."""
    if not isinstance(tensor, DTensor):
        whole = TensorShard(copy_to_host(tensor), torch.Size([0] * tensor.dim()), tensor.shape)
        return whole if is_first else None
    place = tensor.device_mesh.get_coordinate()
    assert place is not None, "this rank has no part in the tensor"
    if any(at and placement.is_replicate() for at, placement in zip(place, tensor.placements, strict=True)):
        return None
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return TensorShard(copy_to_host(tensor.to_local()), chunk.offsets, tensor.shape) if 0 not in chunk.sizes else None


def write_shards(folder: Path, pieces: Mapping[str, TensorShard], rank: int) -> None:
    """Into files of this rank's own, which are on the disk when this returns: torch's writer syncs them."""
    folder.mkdir(parents=True, exist_ok=True)
    if not pieces:
        return
    writer = HuggingFaceStorageWriter(str(folder), _files(pieces), save_distributed=True)
    plan = writer.prepare_local_plan(SavePlan([_item(name, piece) for name, piece in pieces.items()]))
    before = [SavePlan([])] * rank  # a file is named after its plan's place among those of all ranks
    writer.write_data(writer.prepare_global_plan([*before, plan])[-1], _ShardPlanner(pieces)).wait()


def stored_tensors(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and precision of what is there."""
    found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    tensors = {name: each for name, each in found.items() if isinstance(each, TensorStorageMetadata)}
    return {name: (each.size, each.properties.dtype) for name, each in tensors.items()}


def load_into(folder: Path, tensors: dict[str, Any]) -> None:
    """Each rank reads what belongs into its own part."""
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


def copy_to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _files(pieces: Mapping[str, TensorShard]) -> dict[str, int]:
    """Which file a tensor goes into, counted from 1."""
    files = split_by_size({name: piece.tensor for name, piece in pieces.items()}, MAX_FILE_BYTES)
    return {name: number for number, names in enumerate(files, 1) for name in names}


def _item(name: str, piece: TensorShard) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=piece.offsets, sizes=piece.tensor.shape)
    data = TensorWriteData(chunk=chunk, properties=TensorProperties.create_from_tensor(piece.tensor), size=piece.shape)
    return WriteItem(index=MetadataIndex(name, piece.offsets), type=WriteItemType.SHARD, tensor_data=data)


class _ShardPlanner(DefaultSavePlanner):
    """Where the writer finds what its plan names."""

    def __init__(self, pieces: Mapping[str, TensorShard]) -> None:
        super().__init__()
        self._of_this_rank = pieces

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self._of_this_rank[write_item.index.fqn].tensor
