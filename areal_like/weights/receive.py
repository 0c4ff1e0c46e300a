"""The receiving side of weights that are sent: bucket by bucket, and nothing that was not found right."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from areal_like.weights.buckets import file_header, file_order
from areal_like.weights.collective import join_group
from areal_like.weights.flat_buckets import tensor_in
from areal_like.weights.index import Index, write_index
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.verify import payload_bytes, verify_bucket


def receive_tensors(meeting: Rendezvous, rank: int, index: Index) -> Iterator[tuple[str, Tensor]]:
    """Tensors whose hashes were right; they stay until the next one is asked for, so copy what is to be kept. Raises
    GroupBroken, or BadWeights with the tensor's name."""
    room = torch.empty(max((payload_bytes(bucket) for bucket in index.buckets), default=0), dtype=torch.uint8)
    with join_group(meeting, rank) as group:
        for bucket in index.buckets:
            content = room[: payload_bytes(bucket)]
            group.receive(content)
            verify_bucket(bucket, content.numpy(), index.version)
            at = 0
            for info in file_order(bucket.tensors):
                yield info.name, tensor_in(content, info, at)
                at += info.nbytes


def receive_folder(meeting: Rendezvous, rank: int, index: Index, folder: Path) -> None:
    """Into files as a publication has them; `folder` is there, and best in shared memory. Its index comes last. Raises
    OSError, in words that name the folder, where it has too little room."""
    with join_group(meeting, rank) as group:
        for bucket in index.buckets:
            header = file_header(file_order(bucket.tensors))
            with (folder / bucket.file).open("w+b") as file:
                _take_room(file.fileno(), bucket.bytes, folder, index)
                file.write(header)
                file.flush()
                content = torch.frombuffer(mmap.mmap(file.fileno(), bucket.bytes), dtype=torch.uint8)[len(header) :]
            group.receive(content)
            verify_bucket(bucket, content.numpy(), index.version)
    write_index(folder, index)


def _take_room(file: int, size: int, folder: Path, index: Index) -> None:
    """All of it at once: to write through memory where there is none ends the process without a word."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as fault:
        wanted = sum(bucket.bytes for bucket in index.buckets)
        said = f"{fault.strerror}; version {index.version} of the weights wants {wanted} bytes there"
        raise OSError(fault.errno, said, str(folder)) from fault
