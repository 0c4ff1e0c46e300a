"""Stages, loads and verifies new weights in SGLang."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from areal_like.serving.engines.base import NotStaged, Verification, WeightUpdate
from areal_like.serving.engines.external.external_engine import IncompatibleEngine
from areal_like.serving.engines.external.http_calls import EngineClient, RefusedCall
from areal_like.serving.engines.sglang.checksums import PREFIX, FusedTensor, compare, fused_tensors
from areal_like.serving.engines.sglang.command import MODULE
from areal_like.serving.engines.sglang.receiver import WeightReceiver
from areal_like.weights.bucket_files import Bytes, read_bucket, read_bucket_file
from areal_like.weights.buckets import TensorInfo, file_header, file_order
from areal_like.weights.errors import BadWeights
from areal_like.weights.index import Bucket, Index

IDLE_TIMEOUT_S = 10
"""Time for SGLang to notice that all its requests have ended."""


class StagedFiles(NamedTuple):
    """`expected`: SGLang's tensors after the load, None if its checksums cannot be computed."""

    version: int
    folder: Path
    expected: dict[str, FusedTensor] | None


class WeightLoader:
    """SGLang loads from files; sent weights are written to files first, so that their hashes are checked before."""

    def __init__(self, calls: EngineClient, receiver: WeightReceiver) -> None:
        self._calls, self._receiver = calls, receiver
        self._staged: StagedFiles | None = None
        self._live: dict[str, FusedTensor] | None = None
        self.shows_checksums = False
        """Whether SGLang's tensors are in main memory: only those checksums can be computed here."""

    async def stage(self, update: WeightUpdate) -> None:
        """Verifies the hashes of files; those of sent weights were verified when they were received."""
        if update.rendezvous is not None:
            folder, read = await self._receiver.receive(update), _read_received
        else:
            assert update.folder is not None, "weights are in files or sent"
            folder, read = update.folder, read_bucket
        contents = await asyncio.to_thread(_contents, folder, update.index, read)
        expected = None
        if self.shows_checksums:
            expected = await asyncio.to_thread(fused_tensors, update.index.tensors, contents)
        self._staged = StagedFiles(update.version, folder, expected)

    async def commit(self, update: WeightUpdate) -> None:
        """SGLang crashes if it loads while a request is still ending, so /flush_cache waits for that first, and drops
        cached prompts."""
        staged = self._staged
        if staged is None or staged.version != update.version:
            raise NotStaged(f"version {update.version} of the weights was not staged here")
        _check_files(staged.folder, update.index)
        try:
            await self._calls.read("POST", f"/flush_cache?timeout={IDLE_TIMEOUT_S}")
        except RefusedCall as refusal:
            raise NotStaged(f"SGLang does not become idle: {refusal}") from refusal
        body = {"model_path": str(staged.folder), "load_format": "safetensors", "flush_cache": True}
        try:
            await self._calls.post("/update_weights_from_disk", body | {"weight_version": str(update.version)})
        except RefusedCall as refusal:
            raise BadWeights(f"version {update.version} of the weights: {refusal}") from refusal
        self._live, self._staged = staged.expected, None
        self._receiver.forget()

    def discard(self) -> None:
        self._staged = None
        self._receiver.forget()

    def close(self) -> None:
        self._receiver.close()

    async def verify(self, infos: Sequence[TensorInfo]) -> Verification:
        if self._live is None:
            return Verification(uncovered=[info.name for info in infos])
        response = await self._calls.post("/weights_checker", {"action": "checksum"})
        ranks = [rank["checksums"] for rank in response["ranks"]]
        if not all(checksum.startswith(PREFIX) for rank in ranks for checksum in rank.values()):
            raise IncompatibleEngine(f"SGLang reports its own checksums; start it as `python -m {MODULE}`")
        return compare(self._live, ranks, infos)


def _check_files(folder: Path, index: Index) -> None:
    """A missing path would leave SGLang with another model's name; it is checked as late as possible."""
    for bucket in index.buckets:
        path = folder / bucket.file
        if not path.is_file() or path.stat().st_size != bucket.bytes:
            raise NotStaged(f"version {index.version} of the weights: {path} was removed or truncated after the check")


def _contents(folder: Path, index: Index, read: Callable[[Path, Bucket, int], dict[str, Bytes]]) -> dict[str, Bytes]:
    contents: dict[str, Bytes] = {}
    for bucket in index.buckets:
        contents |= read(folder, bucket, index.version)
    return contents


def _read_received(folder: Path, bucket: Bucket, version: int) -> dict[str, Bytes]:
    """The tensors of a bucket, without a look at their hashes."""
    ordered = file_order(bucket.tensors)
    content, at = read_bucket_file(folder, bucket, version), len(file_header(ordered))
    tensors = {}
    for info in ordered:
        tensors[info.name] = content[at : at + info.nbytes]
        at += info.nbytes
    return tensors
