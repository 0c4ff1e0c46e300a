"""Low-rank adapters beside a model's linear layers, for batches whose rows have different ones, or none.

The matrices of all adapters of a batch stand side by side, so that a layer takes two thin products however many there
are; what is not of a row's own adapter is zeroed in between. What is loaded and not in the batch costs nothing.
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
    """Of one layer: `low` is [rank, what goes in], `high` is [what comes out, rank]."""

    low: Tensor
    high: Tensor


@dataclass(eq=False)
class ServedAdapter:
    """One that is loaded. `version`: of the run's weights, where it is one of these."""

    name: str
    scale: float
    layers: Mapping[str, LoraMatrices]
    folder: str = ""
    version: int | None = None


Scale = Tensor | float
"""How strong each rank is for each sequence, [B, 1, R]; a number where all of them have one adapter."""


class BatchedLora:
    """Watches linear layers while, and only while, there is an adapter in the batch."""

    def __init__(self, model: nn.Module) -> None:
        self._linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self._batch: list[ServedAdapter | None] = []
        self._of_batch: dict[str, tuple[LoraMatrices, Scale]] = {}
        self._side_by_side: dict[tuple[str, tuple[ServedAdapter, ...]], LoraMatrices] = {}
        """Of several adapters, for as long as batches have these."""
        self._hooks: list[RemovableHandle] = []
        self._watched: set[str] = set()

    def plan(self, batch: Sequence[ServedAdapter | None]) -> None:
        """The adapter of each sequence of the next run of the model."""
        if len(batch) == len(self._batch) and all(map(operator.is_, batch, self._batch)):
            return
        self._batch = list(batch)
        present = sorted({one for one in batch if one is not None}, key=lambda one: one.name)
        by_layer: dict[str, tuple[ServedAdapter, ...]] = {}
        for one in present:
            for name in one.layers:
                by_layer[name] = (*by_layer.get(name, ()), one)
        wanted = set(by_layer.items())
        self._side_by_side = {key: kept for key, kept in self._side_by_side.items() if key in wanted}
        scales = {adapters: self._scale(adapters) for adapters in set(by_layer.values())}
        self._of_batch = {
            name: (self._matrices(name, adapters), scales[adapters]) for name, adapters in by_layer.items()
        }
        self._watch(set(by_layer))

    def _matrices(self, name: str, adapters: tuple[ServedAdapter, ...]) -> LoraMatrices:
        if len(adapters) == 1:
            return adapters[0].layers[name]
        found = self._side_by_side.get((name, adapters))
        if found is None:
            parts = [one.layers[name] for one in adapters]
            found = LoraMatrices(
                torch.cat([part.low for part in parts]), torch.cat([part.high for part in parts], dim=1)
            )
            self._side_by_side[name, adapters] = found
        return found

    def _scale(self, adapters: tuple[ServedAdapter, ...]) -> Scale:
        if len(adapters) == 1 and all(one is adapters[0] for one in self._batch):
            return adapters[0].scale
        parts = [next(iter(one.layers.values())).low for one in adapters]  # one rank in all layers
        of_rank = [one for one, part in zip(adapters, parts, strict=True) for _ in range(len(part))]
        rows = {own: [one.scale if one is own else 0.0 for one in of_rank] for own in {*adapters, None}}
        scales = [rows[own if own in rows else None] for own in self._batch]
        return torch.tensor(scales, dtype=parts[0].dtype, device=parts[0].device)[:, None]

    def _watch(self, names: set[str]) -> None:
        if names != self._watched:
            for hook in self._hooks:
                hook.remove()
            self._hooks = [self._linear[name].register_forward_hook(partial(self._add, name)) for name in names]
            self._watched = names

    def _add(self, name: str, layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        (low, high), scale = self._of_batch[name]
        thin = linear(given[0], low)
        if isinstance(scale, Tensor):  # some models lay the tokens of all sequences in one row
            by_sequence = thin.view(len(scale), -1, thin.shape[-1])
            thin = (by_sequence * scale).masked_fill_(scale == 0, 0)
        else:
            thin = thin * scale
        output.view(-1, output.shape[-1]).addmm_(thin.reshape(-1, thin.shape[-1]), high.t())
        return output
