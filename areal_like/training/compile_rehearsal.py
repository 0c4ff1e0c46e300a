"""Rehearsal of compiled layers before the first step: one layer of each kind computes micro-batches of several lengths,
forward and backward, compiled and not, in the precision and with the attention, recomputation and hooks of the run.

Each rank rehearses for itself, with copies that no other rank has a part of: a rank that fails leaves none waiting.
"""

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel

from areal_like.process.errors import brief_reason
from areal_like.training.attention_kernels import capability
from areal_like.training.host_copies import HOST
from areal_like.training.model import remove_dropout
from areal_like.training.row_shards import local_tensor
from areal_like.training.sequences import MicroBatch, Sequences

TOLERANCES = {torch.float32: 2e-4}
"""Of a result, relative to its norm."""
HALF_TOLERANCE = 0.05
ROUNDING = 3.0
"""A result may be off by so many times what it changes by when the input is rounded: an input near the border between
two experts may go to either."""
SMALLEST = 0.02
"""A gradient that is smaller than this share of the largest one is compared with that share: it may be nothing but
rounding, as that of a bias of keys."""

MAX_KINDS = 4
INDICES = ("layer_idx", "layer_index", "layer_number", "idx")
"""Settings in which layers of one kind differ."""

LENGTHS = ([61, 43, 43, 37, 19, 8], [53, 41, 31, 24], [59, 30])
"""The compiler takes equal sizes for one: no number of tokens is a usual size of a model. The third micro-batch must
not need another graph."""
EQUAL_LENGTHS = (([1031], [1151], [1283]), ([1033] * 2, [1063] * 3, [1087] * 2))
"""Of the kernel for one sequence, or several of equal length. Around it layers compute the same as around the usual
one."""


class CannotRehearse(Exception):
    """The layer cannot be computed by itself, even if it is not compiled."""


class Unequal(Exception):
    """Compiled layers compute something else."""


class CompilesAnew(Exception):
    """Micro-batches of other lengths need other graphs."""


class LayerCall(NamedTuple):
    """What a model gives to a layer: hidden states, and the other arguments."""

    hidden: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Trial(NamedTuple):
    """How a layer is tried."""

    shard: Callable[[nn.Module], nn.Module]
    """Over this rank alone."""
    compile: Callable[[nn.Module], None]
    forward_context: contextlib.AbstractContextManager[object]
    trains: bool
    every_kernel: bool
    """Also with the kernels that few micro-batches need: that takes three times as long."""
    dtype: torch.dtype
    device: torch.device


def rehearse(model: PreTrainedModel, layers: Sequence[nn.Module], trial: Trial) -> int:
    """The number of kinds of layers that compute the same when compiled. Raises what the compiler raises, or one of the
    exceptions above."""
    kinds = one_of_each_kind(layers)[:MAX_KINDS]
    found = capability(trial.device)
    has_equal = trial.every_kernel and found is not None and found.has_cudnn
    lengths = [LENGTHS, *(EQUAL_LENGTHS if has_equal else ())]
    devices = [trial.device] if trial.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch._dynamo.config.patch(suppress_errors=False):
        torch.manual_seed(0)
        with _explained():
            calls = layer_calls(model, layers, kinds, [micro_batch(each) for some in lengths for each in some])
        num_rehearsed = 0
        for layer, given in zip(kinds, calls, strict=True):
            if given:  # else it is called by another one of the layers
                _rehearse_layer(layer, given, trial)
                num_rehearsed += 1
    return num_rehearsed


def one_of_each_kind(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The first of all layers with the same code, sizes and settings."""
    kinds: dict[Hashable, nn.Module] = {}
    for layer in layers:
        kinds.setdefault(tuple(map(_settings, layer.modules())), layer)
    return list(kinds.values())


def _settings(module: nn.Module) -> Hashable:
    plain = {
        name: value
        for name, value in vars(module).items()
        if name not in INDICES and isinstance(value, bool | int | float | str | None)
    }
    shapes = tuple(tuple(parameter.shape) for parameter in module.parameters(recurse=False))
    return type(module), tuple(sorted(plain.items(), key=lambda item: item[0])), shapes


def micro_batch(lengths: Sequence[int]) -> MicroBatch:
    """With this many input tokens; each sequence has one more, which is only predicted."""
    total = sum(lengths) + len(lengths)
    sequences = Sequences(np.zeros(total, np.int32), np.ones(total, np.uint8), np.array(lengths) + 1)
    return sequences.micro_batch(range(len(lengths)), HOST)


@torch.no_grad()
def layer_calls(
    model: PreTrainedModel, layers: Sequence[nn.Module], kinds: Sequence[nn.Module], micros: Sequence[MicroBatch]
) -> list[list[LayerCall]]:
    """What the model gives each of `kinds` for each micro-batch. The layers themselves compute nothing meanwhile: the
    model may be large, on the CPU, or without weights yet."""
    calls: dict[int, list[LayerCall]] = {id(layer): [] for layer in kinds}

    def stand_in(layer: nn.Module) -> Callable[..., Tensor]:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            hidden, *others = args if args else (kwargs.pop("hidden_states"),)
            if id(layer) in calls:
                calls[id(layer)].append(LayerCall(hidden, tuple(others), kwargs))
            return hidden  # type: ignore[no-any-return]

        return forward

    was_training, place = model.training, next(model.parameters()).device
    model.train(False)
    try:
        for layer in layers:
            vars(layer)["forward"] = stand_in(layer)
        for micro in micros:
            model.base_model(
                input_ids=micro.input_ids_T[None].to(place),
                position_ids=micro.position_ids_T[None].to(place),
                use_cache=False,
                **micro.attention_kwargs(),
            )
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
        model.train(was_training)
    return list(calls.values())


def _rehearse_layer(layer: nn.Module, given: Sequence[LayerCall], trial: Trial) -> None:
    """Holds the results of two passes at a time: all gradients of a large layer are gigabytes."""
    calls = [_placed(call, trial) for call in given]
    with _explained():
        tried = trial.shard(_copy_of(layer))
    trial.compile(tried)
    compiled_call = tried._compiled_call_impl
    for number, call in enumerate(calls):
        tried._compiled_call_impl = None
        with _explained():
            right = _results(tried, call, trial)
            noise = distances(_results(tried, _rounded(call), trial), right)
        tried._compiled_call_impl = compiled_call
        before = counters["stats"]["unique_graphs"]
        compare(_results(tried, call, trial), right, noise, TOLERANCES.get(trial.dtype, HALF_TOLERANCE))
        is_last = number % len(LENGTHS) == len(LENGTHS) - 1
        if is_last and counters["stats"]["unique_graphs"] > before:
            raise CompilesAnew("the compiler makes another graph for other lengths of sequences")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as fault:  # a model may need anything
        raise CannotRehearse(f"a layer cannot be computed by itself ({brief_reason(fault)})") from fault


def _copy_of(layer: nn.Module) -> nn.Module:
    """Without dropout, whose noise differs; with random weights where the layer has none yet."""
    copied = copy.deepcopy(layer)
    remove_dropout(copied)
    if any(tensor.is_meta for tensor in (*copied.parameters(), *copied.buffers())):
        copied.to_empty(device=HOST)
        for parameter in copied.parameters():
            parameter.data.normal_(std=0.02) if parameter.dim() > 1 else parameter.data.fill_(1.0)
        for buffer in copied.buffers():
            buffer.zero_()
    return copied


def _placed(call: LayerCall, trial: Trial) -> LayerCall:
    """On the device of the run, with random hidden states."""

    def place(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
            tensor = tensor.uniform_(-1, 1) if tensor.is_floating_point() else tensor
        return tensor.to(trial.device)

    args, kwargs = tree_map_only(Tensor, place, (call.args, call.kwargs))
    return LayerCall(torch.randn(call.hidden.shape).to(trial.device, trial.dtype), args, kwargs)


def _rounded(call: LayerCall) -> LayerCall:
    """The same with the last digits of the hidden states changed."""
    noise = torch.empty(call.hidden.shape).uniform_(-1, 1).to(call.hidden)
    return call._replace(hidden=call.hidden * (1 + torch.finfo(call.hidden.dtype).eps * noise))


def _results(layer: nn.Module, call: LayerCall, trial: Trial) -> dict[str, Tensor]:
    """Outputs with and without gradients, and all gradients, by name."""
    found: dict[str, Tensor] = {}
    if trial.trains:
        layer.train()
        hidden = call.hidden.clone().requires_grad_()
        with trial.forward_context:
            output = _first(layer(hidden, *call.args, **call.kwargs))
        output.backward(torch.linspace(-1, 1, output.numel()).view(output.shape).to(output))  # type: ignore[no-untyped-call]
        found["output"] = output.detach()
        gradients = {"hidden states": hidden.grad} | {
            name: parameter.grad for name, parameter in layer.named_parameters() if parameter.requires_grad
        }
        for name, gradient in gradients.items():
            if gradient is not None:
                found[f"gradient of {name}"] = local_tensor(gradient).detach().clone()
        layer.zero_grad(set_to_none=True)
    layer.eval()
    with torch.no_grad():
        found["output without gradients"] = _first(layer(call.hidden, *call.args, **call.kwargs))
    return found


def _first(output: Any) -> Tensor:
    """Some layers return a tuple."""
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def compare(
    actual: Mapping[str, Tensor], right: Mapping[str, Tensor], noise: Mapping[str, float], tolerance: float
) -> None:
    """Raises `Unequal`. `noise` is how far the right results are from those for an input that was rounded."""
    if actual.keys() != right.keys():
        raise Unequal(f"only one has a {', '.join(sorted(actual.keys() ^ right.keys()))}")
    roots = {name: _root(tensor) for name, tensor in right.items() if tensor.numel()}
    for name, off in distances(actual, right).items():
        scale = max(roots[name], SMALLEST * max(roots.values()))
        limit = max(tolerance * scale, ROUNDING * noise[name])
        if not off <= limit:
            raise Unequal(f"{name}: off by {off / (scale or 1):.2g}, more than {limit / (scale or 1):.2g}")


def distances(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, float]:
    """Of results with the same name: the root of the mean square."""
    return {name: _root(some[name].float() - one.float()) for name, one in others.items() if one.numel()}


def _root(tensor: Tensor) -> float:
    return tensor.float().square().mean().sqrt().item()
