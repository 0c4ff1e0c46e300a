"""Batched LoRA: low-rank adapters of linear layers, for batches whose rows have different adapters, or none.

The matrices of all adapters of a batch are concatenated: a layer needs two thin products however many there are;
ranks of other rows' adapters are zeroed in between. Loaded adapters that are not in the batch cost nothing.
B sequences, R ranks of all adapters of a batch together.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.hooks import RemovableHandle


class LoraMatrices(NamedTuple):
    """Of one layer: `low` is [rank, inputs], `high` is [outputs, rank]."""

    low: Tensor
    high: Tensor


@dataclass(eq=False)
class ServedAdapter:
    """A loaded adapter. `version`: of the run's weights, if it is one of them."""

    name: str
    scale: float
    layers: Mapping[str, LoraMatrices]
    folder: str = ""
    version: int | None = None


Scale = Tensor | float
"""Scale of each rank for each sequence, [B, 1, R]; one number where all have the same adapter."""


class BatchedLora:
    """Has forward hooks on linear layers while there is an adapter in the batch."""

    def __init__(self, model: nn.Module) -> None:
        self._linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self._batch: list[ServedAdapter | None] = []
        self._active: dict[str, tuple[LoraMatrices, Scale]] = {}
        self._concatenated: dict[tuple[str, tuple[ServedAdapter, ...]], LoraMatrices] = {}
        """Concatenated matrices, kept while batches have these adapters."""
        self._hooks: list[RemovableHandle] = []
        self._hooked: set[str] = set()

    @property
    def is_active(self) -> bool:
        """Whether a sequence of the next pass has an adapter."""
        return bool(self._active)

    def set_batch(self, batch: Sequence[ServedAdapter | None]) -> None:
        """Sets the adapter of each sequence of the next forward pass."""
        if len(batch) == len(self._batch) and all(map(operator.is_, batch, self._batch)):
            return
        self._batch = list(batch)
        present = sorted({one for one in batch if one is not None}, key=lambda one: one.name)
        by_layer: dict[str, tuple[ServedAdapter, ...]] = {}
        for one in present:
            for name in one.layers:
                by_layer[name] = (*by_layer.get(name, ()), one)
        active = set(by_layer.items())
        self._concatenated = {key: kept for key, kept in self._concatenated.items() if key in active}
        scales = {adapters: self._scale(adapters) for adapters in set(by_layer.values())}
        self._active = {name: (self._matrices(name, adapters), scales[adapters]) for name, adapters in by_layer.items()}
        self._hook(set(by_layer))

    def _matrices(self, name: str, adapters: tuple[ServedAdapter, ...]) -> LoraMatrices:
        if len(adapters) == 1:
            return adapters[0].layers[name]
        matrices = self._concatenated.get((name, adapters))
        if matrices is None:
            parts = [one.layers[name] for one in adapters]
            matrices = LoraMatrices(
                torch.cat([part.low for part in parts]), torch.cat([part.high for part in parts], dim=1)
            )
            self._concatenated[name, adapters] = matrices
        return matrices

    def _scale(self, adapters: tuple[ServedAdapter, ...]) -> Scale:
        if len(adapters) == 1 and all(one is adapters[0] for one in self._batch):
            return adapters[0].scale
        parts = [next(iter(one.layers.values())).low for one in adapters]  # an adapter has one rank in all layers
        of_rank = [one for one, part in zip(adapters, parts, strict=True) for _ in range(len(part))]
        rows = {own: [one.scale if one is own else 0.0 for one in of_rank] for own in {*adapters, None}}
        scales = [rows[own if own in rows else None] for own in self._batch]
        return torch.tensor(scales, dtype=parts[0].dtype, device=parts[0].device)[:, None]

    def _hook(self, names: set[str]) -> None:
        if names != self._hooked:
            for hook in self._hooks:
                hook.remove()
            self._hooks = [self._linear[name].register_forward_hook(partial(self._add, name)) for name in names]
            self._hooked = names

    def _add(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        (low, high), scale = self._active[name]
        thin = linear(inputs[0], low)
        if not isinstance(scale, Tensor):  # in the order of the trainer (peft), so that both round the same numbers
            return output.add_(linear(thin, high) * scale)
        by_sequence = thin.view(len(scale), -1, thin.shape[-1])  # some models flatten the tokens of all sequences
        thin = (by_sequence * scale).masked_fill_(scale == 0, 0)
        output.view(-1, output.shape[-1]).addmm_(thin.reshape(-1, thin.shape[-1]), high.t())
        return output
