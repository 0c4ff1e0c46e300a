"""A stand-in for CUDA graphs on a CPU: records operators with the memory of their inputs, and computes them again."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only


class Recorder(TorchDispatchMode):
    """Tensors from outside are kept by their memory, as a graph keeps addresses: what a name stands for later, and any
    number that Python had, changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Any]]] = []
        self._made: dict[int, torch.Tensor] = {}
        self._outside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = tree_map_only(torch.Tensor, self._keep, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        results = tree_flatten(result)[0]
        for made in results:
            if isinstance(made, torch.Tensor) and id(made) not in self._outside:
                self._made[id(made)] = made
        self._calls.append((func, *kept, results))
        return result

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in self._made:
            return tensor
        if id(tensor) not in self._outside:
            self._outside[id(tensor)] = tensor, tensor.detach()
        return self._outside[id(tensor)][1]

    @torch.inference_mode()
    def replay(self) -> None:
        now: dict[int, Any] = {}
        for func, args, kwargs, results in self._calls:
            args, kwargs = tree_map_only(torch.Tensor, lambda one: now.get(id(one), one), (args, kwargs))
            again = tree_flatten(func(*args, **kwargs))[0]
            now.update((id(made), new) for made, new in zip(results, again, strict=True) if id(made) in self._made)


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """Unlike CUDA it computes the step while it records it, which changes no result: the replay follows at once."""
    recorder = Recorder()
    with recorder:
        step()
    return recorder.replay
