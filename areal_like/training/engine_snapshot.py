"""What a checkpoint takes of an engine: copies on the host, which training changes no more."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from areal_like.config.sections.weights import WeightsConfig
from areal_like.training.engine import TrainEngine
from areal_like.training.hf_folder import write_adapter, write_hf_folder
from areal_like.training.resume_state import engine_state
from areal_like.training.sharded_files import TensorShard, copy_to_host, write_shards

ADAPTER = "adapter"
"""Folder beside the merged weights."""


@dataclass
class EngineSnapshot:
    """`weights` are on the first rank alone, `pieces` of the resume state are this rank's."""

    engine: TrainEngine
    how: WeightsConfig
    weights: dict[str, Tensor]
    adapter: dict[str, Tensor]
    """By itself, where it is wanted so."""
    pieces: dict[str, TensorShard]

    @classmethod
    def of(cls, engine: TrainEngine, to_resume: bool, how: WeightsConfig) -> "EngineSnapshot":
        """All ranks must call it."""
        is_first = engine.world.is_first
        weights = _on_first(engine, engine.export_weights())
        wants_adapter = how.save_adapter_separately and engine.adapter is not None
        adapter = _on_first(engine, engine.export_weights(adapter_only=True)) if wants_adapter else {}
        return cls(engine, how, weights, adapter, engine_state(engine, is_first) if to_resume else {})

    def write_resume(self, folder: Path) -> None:
        write_shards(folder, self.pieces, self.engine.world.rank)

    def write_folder(self, folder: Path, tokenizer: Path | None) -> None:
        """As transformers reads it, and with the adapter as peft does."""
        engine = self.engine
        dtype = getattr(torch, engine.config.dtype)
        write_hf_folder(folder, engine.model, engine.folder, self.weights, dtype, self.how, tokenizer)
        if engine.adapter is not None and self.adapter:
            write_adapter(folder / ADAPTER, self.adapter, engine.adapter.peft_config, self.how)


def _on_first(engine: TrainEngine, tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """All ranks put them together, and one keeps them."""
    found = ((name, copy_to_host(tensor) if engine.world.is_first else None) for name, tensor in tensors)
    return {name: tensor for name, tensor in found if tensor is not None}
