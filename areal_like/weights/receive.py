"""Receives weights bucket by bucket, and verifies each before use."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from areal_like.weights.buckets import file_header, file_order
from areal_like.weights.collective import BroadcastGroup, join_group
from areal_like.weights.flat_buckets import tensor_in
from areal_like.weights.index import Bucket, Index, write_index
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.verify import payload_bytes, verify_bucket


def receive_tensors(rendezvous: Rendezvous, rank: int, index: Index) -> Iterator[tuple[str, Tensor]]:
    """Yields tensors with verified hashes; each is valid until the next one, so copy what is kept. Raises GroupBroken,
    or BadWeights with the tensor's name."""
    with join_group(rendezvous, rank) as group:
        for bucket, content in _buckets(group, index):
            at = 0
            for info in file_order(bucket.tensors):
                yield info.name, tensor_in(content, info, at)
                at += info.nbytes


def receive_folder(rendezvous: Rendezvous, rank: int, index: Index, folder: Path) -> None:
    """Receives into the files of a publication, in an existing folder, preferably in shared memory; the index is
    written last. Raises OSError with the folder's name if it has too little space."""
    with join_group(rendezvous, rank) as group:
        for bucket, content in _buckets(group, index):
            _write(folder, bucket, content, index)
    write_index(folder, index)


def _buckets(group: BroadcastGroup, index: Index) -> Iterator[tuple[Bucket, Tensor]]:
    """Their contents with verified hashes, all in the same memory: to write that to files is faster than to receive
    into mapped ones."""
    buffer = torch.empty(max((payload_bytes(bucket) for bucket in index.buckets), default=0), dtype=torch.uint8)
    for bucket in index.buckets:
        content = buffer[: payload_bytes(bucket)]
        group.receive(content)
        verify_bucket(bucket, content.numpy(), index.version)
        yield bucket, content


def _write(folder: Path, bucket: Bucket, content: Tensor, index: Index) -> None:
    try:
        with (folder / bucket.file).open("wb") as file:
            file.write(file_header(file_order(bucket.tensors)))
            file.write(content.numpy().data)
    except OSError as fault:
        needed = sum(bucket.bytes for bucket in index.buckets)
        text = f"{fault.strerror}; version {index.version} of the weights needs {needed} bytes there"
        raise OSError(fault.errno, text, str(folder)) from fault
