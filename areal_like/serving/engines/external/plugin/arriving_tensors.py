"""New weights as they arrive in a worker of vLLM or SGLang: from files, or sent by the trainer. Runs in the engine's
environment."""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from areal_like.serving.engines.external.plugin.exchange import ShareExchange
from areal_like.serving.engines.external.plugin.staging_room import StagingRoom
from areal_like.weights import device_copies
from areal_like.weights.bucket_files import is_mapped, iterate_bucket, iterate_share
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.flat_buckets import as_tensor
from areal_like.weights.hash_shares import hash_share
from areal_like.weights.index import Index, parse_index, read_index
from areal_like.weights.kept_group import KeptGroup
from areal_like.weights.own_stream import own_stream
from areal_like.weights.receive import receive_tensors
from areal_like.weights.rendezvous import Rendezvous
from areal_like.weights.transfer_path import GLOO, IPC, NCCL
from areal_like.weights.verify import payload_bytes

LOOPBACK = "127.0.0.1"
Tensors = Generator[tuple[str, Tensor], None, None]


@dataclass(frozen=True)
class Arrival:
    """Weights in `folder`, or sent at `rendezvous`. `peers`: the ranks of the workers that share the work. Of files in
    shared memory each on this machine hashes a part. Of other files, and of what is sent by NCCL, each worker of the
    engine keeps a share, and they meet at `exchange_at` to pass it on."""

    index: Index
    folder: Path | None
    rendezvous: Rendezvous | None
    peers: Sequence[int]
    exchange_at: Rendezvous | None = None

    @classmethod
    def of(cls, message: str, rank: int) -> "Arrival":
        content = json.loads(message)
        meeting = None if content["meeting"] is None else Rendezvous(**content["meeting"])
        folder = None if content["folder"] is None else Path(content["folder"])
        index, peers, workers = parse_index(content["index"], "the index that was sent"), [rank], content["workers"]
        if meeting is not None:
            is_divided = workers > 1 and meeting.backend == NCCL
            return cls(
                index, None, meeting, list(range(workers)) if is_divided else peers, meeting if is_divided else None
            )
        assert folder is not None, "weights are in files or sent"
        here = content["peers"].get(str(rank), peers)
        if is_mapped(folder) or len(here) < workers or workers == 1:
            return cls(index, folder, None, here if is_mapped(folder) else peers)
        at = Rendezvous(LOOPBACK, 1, content["group"], "", 0, workers, content["limit_s"])
        return cls(index, folder, None, here, at)

    @property
    def is_divided(self) -> bool:
        """Whether each worker keeps a share."""
        return self.exchange_at is not None

    def unverified(self, ranks: Sequence[int]) -> list[int]:
        """The peers that are not among the ranks which verified their share."""
        return [peer for peer in self.peers if peer not in ranks]

    def tensors(self, rank: int, group: KeptGroup, room: StagingRoom, exchange: ShareExchange) -> Tensors:
        """Each as soon as its content is verified, or is to be verified by another worker of this machine. Those in
        files stay there; of those that are sent, the share of this worker."""
        if self.exchange_at is not None:
            exchange.connect(self.exchange_at, rank, len(self.peers))
        if self.rendezvous is not None:
            yield from received(self.rendezvous, self.index, rank, group, room, len(self.peers))
            return
        index, folder = self.index, self.folder
        assert folder is not None, "weights are in files or sent"
        if read_index(folder) != index:
            raise BadWeights(
                f"version {index.version} of the weights: {folder} has another index than the one that was sent"
            )
        mine = hash_share(index.tensors, self.peers.index(rank), len(self.peers)) if len(self.peers) > 1 else None
        for bucket in index.buckets:
            if self.is_divided and mine is not None:
                contents = iterate_share(folder, bucket, index.version, mine)
            else:
                contents = iterate_bucket(folder, bucket, index.version, mine)
            for info, content in contents:
                yield info.name, as_tensor(info, torch.from_numpy(content))


def received(
    rendezvous: Rendezvous, index: Index, rank: int, group: KeptGroup, room: StagingRoom, shares: int = 1
) -> Iterator[tuple[str, Tensor]]:
    """Sent tensors, of the share of this worker: on the GPU if they come there and it has room for them, else copies in
    main memory. What it keeps of a bucket with tensors of others is copied."""
    mine = hash_share(index.tensors, rank, shares) if shares > 1 else frozenset(info.name for info in index.tensors)
    on_gpu = rendezvous.backend != GLOO and group.device.type == "cuda"
    stays = not on_gpu or room.has(bytes_at_once(index, mine), shares_gpu=rendezvous.backend == IPC)
    keeps_all = stays and shares == 1
    with own_stream(group.device):
        sent = receive_tensors(rendezvous, rendezvous.first_rank + rank, index, group, keeps_all)
        with closing(sent):
            for name, tensor in sent:
                if name not in mine:
                    continue
                try:
                    copy = tensor if keeps_all else tensor.clone() if stays else tensor.cpu()
                except torch.OutOfMemoryError as fault:  # used by the engine since; the next one uses main memory
                    raise GroupBroken(f"no memory on the GPU for {name}") from fault
                yield name, copy


def bytes_at_once(index: Index, kept: frozenset[str]) -> int:
    """Of what is kept, and unless that is all, of the bucket that arrives."""
    copies = sum(info.nbytes for info in index.tensors if info.name in kept)
    if len(kept) == len(index.tensors):
        return copies
    return copies + max((payload_bytes(each) for each in index.buckets), default=0)


def use_on_this_stream(tensors: Iterator[Tensor]) -> None:
    """They were made on another stream: their memory must not be used again before this one has read it."""
    for tensor in tensors:
        if device_copies.is_on_gpu(tensor):
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
