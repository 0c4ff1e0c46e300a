"""Receives weights bucket by bucket, and verifies each before use."""

import contextlib
from collections.abc import Generator, Iterator

import torch
from torch import Tensor

from areal_like.weights.buckets import places
from areal_like.weights.collective import CPU, BroadcastGroup
from areal_like.weights.device_checksum import checksum_texts, checksum_values
from areal_like.weights.errors import GroupBroken
from areal_like.weights.fingerprint import tensor_hash
from areal_like.weights.flat_buckets import as_tensor
from areal_like.weights.index import Bucket, Index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer_path import GLOO
from areal_like.weights.verify import check_index, corrupted, payload_bytes, verify_bucket


def receive_tensors(
    rendezvous: Rendezvous, rank: int, index: Index, kept: KeptGroup | None = None, keeps_all: bool = False
) -> Generator[tuple[str, Tensor], None, None]:
    """Yields tensors with verified content. Unless the caller `keeps_all`, each is valid until the next one, so copy
    what is kept. Raises GroupBroken, or BadWeights with the tensor's name. With `kept`, its process stays in the group;
    then they are on its GPU if trainer and servers all use theirs."""
    with _joined(rendezvous, rank, kept) as group:
        for bucket, content in _buckets(group, index, keeps_all):
            for info, place in places(bucket.tensors):
                yield info.name, as_tensor(info, content[place])


@contextlib.contextmanager
def _joined(rendezvous: Rendezvous, rank: int, kept: KeptGroup | None) -> Iterator[BroadcastGroup]:
    keeper = KeptGroup() if kept is None else kept
    try:
        with keeper.opened(rendezvous, rank) as group:
            yield group.join()
    finally:
        if kept is None:
            keeper.leave()


def _buckets(group: BroadcastGroup, index: Index, keeps_all: bool) -> Iterator[tuple[Bucket, Tensor]]:
    """Their verified contents, all in the same memory unless all are kept."""
    device = CPU if group.rendezvous.backend == GLOO else group.device
    largest = max((payload_bytes(bucket) for bucket in index.buckets), default=0)
    buffer = None if keeps_all else _memory(largest, device)
    for bucket in index.buckets:
        size = payload_bytes(bucket)
        content = _memory(size, device) if buffer is None else buffer[:size]
        group.receive(content)
        if device.type == "cpu" and not any(info.has_checksum_only for info in bucket.tensors):
            verify_bucket(bucket, content.numpy(), index.version)
        else:
            verify_by_checksum(bucket, content, index.version)
        yield bucket, content


def _memory(size: int, device: torch.device) -> Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as fault:  # the next transfer uses main memory
        raise GroupBroken(f"no memory on the GPU for a bucket of {size} bytes") from fault


def verify_by_checksum(bucket: Bucket, content: Tensor, version: int) -> None:
    """The same as `verify_bucket` by checksums, where the trainer has published them: for content on a GPU they are
    computed there."""
    check_index(bucket, version)
    tensors = [(info, as_tensor(info, content[place])) for info, place in places(bucket.tensors)]
    found = checksum_texts(checksum_values([part for _, part in tensors]))
    for (info, part), checksum in zip(tensors, found, strict=True):
        if info.checksum and checksum != info.checksum:
            raise corrupted(info, f"checksum {info.checksum}", version)
        if not info.checksum and tensor_hash(part) != info.hash:
            raise corrupted(info, f"hash {info.hash}", version)
