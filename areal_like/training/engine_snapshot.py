"""A snapshot of an engine for a checkpoint: copies on the host, which training does not change."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from areal_like.config.sections.weights import WeightsConfig
from areal_like.process.hashed_files import HashedFiles
from areal_like.training.engine import TrainEngine
from areal_like.training.hf_folder import write_adapter, write_hf_folder
from areal_like.training.host_copies import HostCopies
from areal_like.training.resume_state import engine_state
from areal_like.training.sharded_files import TensorShard, write_shards

ADAPTER = "adapter"
"""Subfolder of the adapter beside the merged weights."""


@dataclass
class EngineSnapshot:
    """`weights` are on the first rank only, `shards` are this rank's part of the resume state."""

    engine: TrainEngine
    config: WeightsConfig
    weights: dict[str, Tensor]
    adapter: dict[str, Tensor]
    """Separately, with `weights.save_adapter_separately`."""
    shards: dict[str, TensorShard]

    @classmethod
    def of(cls, engine: TrainEngine, to_resume: bool, config: WeightsConfig, memory: HostCopies) -> "EngineSnapshot":
        """All ranks must call it. It is valid until the next of the same `memory`."""
        weights = _on_first(engine, "weights", engine.export_weights(), memory)
        has_adapter = config.save_adapter_separately and engine.adapter is not None
        tensors = engine.export_weights(adapter_only=True) if has_adapter else iter(())
        adapter = _on_first(engine, ADAPTER, tensors, memory)
        state = engine_state(engine, memory) if to_resume else {}
        memory.wait()
        return cls(engine, config, weights, adapter, state)

    def write_resume(self, files: HashedFiles, folder: Path) -> None:
        write_shards(files, folder, self.shards, self.engine.world.rank)

    def write_folder(self, files: HashedFiles, folder: Path, tokenizer: Path | None) -> None:
        """In the format of transformers, and the adapter in that of peft."""
        engine = self.engine
        dtype = getattr(torch, engine.config.dtype)
        write_hf_folder(folder, engine.model, engine.folder, self.weights, dtype, self.config, tokenizer, files)
        if engine.adapter is not None and self.adapter:
            write_adapter(files, folder / ADAPTER, self.adapter, engine.adapter.peft_config, self.config)


def _on_first(
    engine: TrainEngine, kind: str, tensors: Iterator[tuple[str, Tensor]], memory: HostCopies
) -> dict[str, Tensor]:
    """Gathered by all ranks, kept by the first."""
    is_first = engine.world.is_first
    copies = ((name, memory.copy((kind, name), tensor) if is_first else None) for name, tensor in tensors)
    return {name: tensor for name, tensor in copies if tensor is not None}
