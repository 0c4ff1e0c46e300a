"""The weights with which an engine started, compared with the files of the model that they must be."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from areal_like.serving.engines.base import InferenceEngine, Verification
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.errors import BadWeights, with_layer
from areal_like.weights.hashes import hash_of
from areal_like.weights.model_files import model_tensors


async def verify_loaded(engine: InferenceEngine, folder: Path) -> tuple[list[TensorInfo], Verification]:
    """The tensors of the model, and what the engine shows of them. Raises BadWeights if one differs."""
    tensors = await asyncio.to_thread(model_tensors, folder, engine.info.dtype, engine.info.tensors)
    check = await engine.verify(tensors, None)
    hashes = {info.name: info.hash for info in tensors}
    served = {name: value for name, value in check.hashes.items() if name in hashes}
    if wrong := [*check.wrong, *(name for name, value in served.items() if value != hashes[name])]:
        others = f" and {len(wrong) - 1} more tensors" if len(wrong) > 1 else ""
        raise BadWeights(
            f"this server does not have the weights of {folder}: {with_layer(wrong[0])}{others} differ; start it again "
            "with that model"
        )
    return tensors, Verification(served, {}, sorted(hashes.keys() - served.keys()))


def digest_of(tensors: Sequence[TensorInfo]) -> str:
    """One hash of all of them."""
    return hash_of("", (), *(f"{info.name} {info.hash}\n".encode() for info in sorted(tensors)))
