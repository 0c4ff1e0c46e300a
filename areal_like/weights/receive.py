"""Receives weights bucket by bucket, and verifies each before use."""

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


def receive_tensors(rendezvous: Rendezvous, rank: int, index: Index) -> Iterator[tuple[str, Tensor]]:
    """Yields tensors with verified hashes; each is valid until the next one, so copy what is kept. Raises GroupBroken,
    or BadWeights with the tensor's name."""
    buffer = torch.empty(max((payload_bytes(bucket) for bucket in index.buckets), default=0), dtype=torch.uint8)
    with join_group(rendezvous, rank) as group:
        for bucket in index.buckets:
            content = buffer[: payload_bytes(bucket)]
            group.receive(content)
            verify_bucket(bucket, content.numpy(), index.version)
            at = 0
            for info in file_order(bucket.tensors):
                yield info.name, tensor_in(content, info, at)
                at += info.nbytes


def receive_folder(rendezvous: Rendezvous, rank: int, index: Index, folder: Path) -> None:
    """Receives into the files of a publication, in an existing folder, preferably in shared memory; the index is
    written last. Raises OSError with the folder's name if it has too little space."""
    with join_group(rendezvous, rank) as group:
        for bucket in index.buckets:
            header = file_header(file_order(bucket.tensors))
            with (folder / bucket.file).open("w+b") as file:
                _allocate(file.fileno(), bucket.bytes, folder, index)
                file.write(header)
                file.flush()
                content = torch.frombuffer(mmap.mmap(file.fileno(), bucket.bytes), dtype=torch.uint8)[len(header) :]
            group.receive(content)
            verify_bucket(bucket, content.numpy(), index.version)
    write_index(folder, index)


def _allocate(file: int, size: int, folder: Path, index: Index) -> None:
    """Allocates the whole file: writing to mapped memory without space would kill the process (SIGBUS)."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as fault:
        needed = sum(bucket.bytes for bucket in index.buckets)
        text = f"{fault.strerror}; version {index.version} of the weights needs {needed} bytes there"
        raise OSError(fault.errno, text, str(folder)) from fault
