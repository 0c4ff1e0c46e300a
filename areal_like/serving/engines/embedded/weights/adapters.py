"""Registry of adapters: loaded ones by name, the one that the run serves, and removal of unused ones."""

from collections.abc import Collection, Iterator

import torch
from torch import nn

from areal_like.serving.engines.embedded.weights.batched_lora import LoraMatrices, ServedAdapter
from areal_like.serving.requests import BadRequest
from areal_like.weights.adapter import AdapterFiles
from areal_like.weights.bucket_files import Bytes
from areal_like.weights.buckets import TensorInfo
from areal_like.weights.device_checksum import checksums
from areal_like.weights.errors import BadWeights, with_layer
from areal_like.weights.fingerprint import dtype_name, tensor_hash
from areal_like.weights.lora import LORA_A, LORA_B, PEFT_PREFIX, check_tensors, parse_adapter_config


class AdapterRegistry:
    """`make` may run in any thread; all else belongs to the engine's."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._layers, self._tied = _linear_layers(model)
        self.loaded: dict[str, ServedAdapter] = {}
        self.current: ServedAdapter | None = None
        """Used by new groups of the run; None is the bare model."""

    def make(
        self, files: AdapterFiles, name: str, subject: str, version: int | None = None, folder: str = ""
    ) -> ServedAdapter:
        """An adapter in the model's precision, not served yet; raises BadWeights that begins with `subject`."""
        lora = parse_adapter_config(files.config, subject)
        check_tensors(lora, files.shapes, self._layers, self._tied, subject)
        tensors = {info.name: self._tensor(info, files.contents[info.name], subject) for info in files.infos}
        names = [info.name.removesuffix(LORA_A) for info in files.infos if info.name.endswith(LORA_A)]
        layers = {
            name.removeprefix(PEFT_PREFIX): LoraMatrices(tensors[f"{name}{LORA_A}"], tensors[f"{name}{LORA_B}"])
            for name in names
        }
        return ServedAdapter(name, lora.scale, layers, folder, version)

    def expected_hashes(self, files: AdapterFiles) -> dict[str, str]:
        """The hashes of `adapter_tensors` of an adapter that is made from these files."""
        return {
            info.name: info.hash
            if info.dtype == dtype_name(self._dtype)
            else tensor_hash(_as_published(info, files.contents[info.name]).to(self._dtype))
            for info in files.infos
        }

    def expected_checksums(self, files: AdapterFiles) -> dict[str, str]:
        """The same as checksums, computed on the CPU: adapters are small."""
        return checksums(
            (info.name, _as_published(info, files.contents[info.name]).to(self._dtype)) for info in files.infos
        )

    def set_current(self, adapter: ServedAdapter) -> None:
        """Serves one of the run's versions to its new groups."""
        self.loaded[adapter.name] = self.current = adapter

    def add(self, adapter: ServedAdapter) -> None:
        """Serves an adapter to requests that name it."""
        if adapter.name in self.loaded:
            raise BadWeights(f"adapter {adapter.name} is loaded already; unload it first, or take another name")
        self.loaded[adapter.name] = adapter

    def remove(self, name: str) -> None:
        """Running groups keep it to their end."""
        if self.get(name) is self.current:
            raise BadRequest(f"adapter {name} is what the run serves; it is unloaded after the next version")
        del self.loaded[name]

    def get(self, name: str) -> ServedAdapter:
        if name not in self.loaded:
            known = f"loaded are {', '.join(sorted(self.loaded))}" if self.loaded else "no adapter is"
            raise BadRequest(f"adapter {name} is not loaded; {known}")
        return self.loaded[name]

    @property
    def has_old(self) -> bool:
        """Whether versions are loaded that the run no longer serves."""
        return any(one.version is not None and one is not self.current for one in self.loaded.values())

    def drop_old(self, in_use: Collection[ServedAdapter | None]) -> None:
        """Unloads the run's older versions, except for those in use."""
        for name, one in list(self.loaded.items()):
            if one.version is not None and one is not self.current and one not in in_use:
                del self.loaded[name]

    def _tensor(self, info: TensorInfo, content: Bytes, subject: str) -> torch.Tensor:
        tensor = _as_published(info, content).to(self._device, self._dtype)
        # In a batch of several adapters, 0 times inf or nan would spoil the rows of the others.
        if not torch.isfinite(tensor).all():
            raise BadWeights(f"{subject}: {with_layer(info.name)} has numbers that are not finite")
        return tensor


def adapter_tensors(adapter: ServedAdapter) -> Iterator[tuple[str, torch.Tensor]]:
    """By their names in files."""
    for name, (low, high) in adapter.layers.items():
        yield f"{PEFT_PREFIX}{name}{LORA_A}", low
        yield f"{PEFT_PREFIX}{name}{LORA_B}", high


def _as_published(info: TensorInfo, content: Bytes) -> torch.Tensor:
    """A copy: the file may be removed."""
    return torch.from_numpy(content.copy()).view(getattr(torch, info.dtype)).reshape(info.shape)


def _linear_layers(model: nn.Module) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Outputs and inputs of each linear layer, and the layers whose weight is tied. Experts of a mixture are left out:
    they see tokens of all rows at once."""
    owners: dict[int, int] = {}
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is not None:
            owners[id(weight)] = owners.get(id(weight), 0) + 1
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "experts" not in name.split(".")
    }
    tied = [name for name, module in linear.items() if owners[id(module.weight)] > 1]
    layers = {name: (module.out_features, module.in_features) for name, module in linear.items() if name not in tied}
    return layers, tied
