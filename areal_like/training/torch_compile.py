"""Layers compiled by torch.compile, each by itself: the first one is compiled, the others use what was made of it.

How a micro-batch is cut into sequences must not become part of what is compiled, or each would be compiled anew. On a
GPU kernels take the borders as a tensor. Elsewhere attention is a loop over sequences, which is hidden from the
compiler here: it sees one operation that knows the shape of its result, and how to go backward.
"""

import os
import shutil
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from areal_like.config.sections.train_engine import CompileConfig
from areal_like.data.user_code import config_error
from areal_like.training.attention import REGISTERED_NAMES, LengthGroup, causal_mask, length_groups, packed_attention

COMPILERS = ("c++", "g++", "clang++")

aten: Any = torch.ops.aten

OPAQUE_ATTENTION = "areal_like_packed_hidden"
"""The name under which transformers finds it."""


def compile_layers(
    model: PreTrainedModel, layers: list[nn.Module], config: CompileConfig, where: str, device: torch.device
) -> None:
    """In place, before they are sharded: what FSDP does around a layer is no part of it. `where` is the section that
    `config` is part of."""
    if device.type == "cpu" and not has_compiler():
        message = f"torch.compile wants a C++ compiler on a CPU, such as g++; install one, or set {where}.compile=null"
        raise config_error(f"{where}.compile", message)
    if device.type == "cpu" and model.config._attn_implementation == REGISTERED_NAMES["sdpa"]:
        _check_supported(model, where)
        model.set_attn_implementation(OPAQUE_ATTENTION)
    for layer in layers:
        # Lengths differ from one micro-batch to the next.
        layer.compile(fullgraph=config.fullgraph, dynamic=True)


def has_compiler() -> bool:
    return "CXX" in os.environ or any(map(shutil.which, COMPILERS))


def _check_supported(model: PreTrainedModel, where: str) -> None:
    """What the hidden operation has not."""
    lacks = None
    if any(getattr(module, "attention_dropout", 0.0) for module in model.modules()):
        lacks = f"dropout, which this model wants: set {where}.disable_dropout=true, or"
    elif getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        lacks = "capped scores, which this model wants:"
    if lacks:
        raise config_error(f"{where}.compile", f"on a CPU compiled attention has no {lacks} set {where}.compile=null")


def opaque_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it."""
    assert not dropout and softcap is None, "refused before"
    assert cu_seq_lens_q is not None
    return _packed_attention_op(query, key, value, cu_seq_lens_q, scaling, sliding_window or 0), None


@torch.library.custom_op("areal_like::packed_attention", mutates_args=())
def _packed_attention_op(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scaling: float, window: int) -> Tensor:
    runs = length_groups(ends.diff().tolist())
    return packed_attention(nn.Module(), q, k, v, None, scaling, sliding_window=window or None, runs=runs)[0]


@torch.library.custom_op("areal_like::packed_attention_backward", mutates_args=())
def _packed_attention_backward_op(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scaling: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Goes forward once more: an operation hands nothing on but tensors whose shapes are known beforehand. Autograd is
    out of reach in here, so that it is the kernel's own backward pass that is called."""
    found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v)]
    out_gradient = gradient.transpose(1, 2)
    for run in length_groups(ends.diff().tolist()):
        part = slice(run.start, run.start + run.num * run.length)

        def of_run(tensor: Tensor, part: slice = part, run: LengthGroup = run) -> Tensor:
            """[sequences, heads, length, head size], each key and value as often as there are queries to it."""
            found = tensor[0, :, part].reshape(tensor.shape[1], run.num, run.length, -1).transpose(0, 1)
            return found.repeat_interleave(q.shape[1] // tensor.shape[1], 1)

        inputs, mask = [of_run(tensor) for tensor in (q, k, v)], None
        if window and run.length > window:
            mask = torch.zeros(run.length, run.length, dtype=q.dtype, device=q.device)
            mask.masked_fill_(~causal_mask(run.length, window, q.device), float("-inf"))
        how = {"attn_mask": mask, "scale": scaling}
        is_causal = mask is None
        out, normalizer = aten._scaled_dot_product_flash_attention_for_cpu(*inputs, 0.0, is_causal, **how)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            of_run(out_gradient), *inputs, out, normalizer, 0.0, is_causal, **how
        )
        for into, each in zip(found, gradients, strict=True):
            of_heads = each.unflatten(1, (into.shape[1], -1)).sum(2)
            into[0, :, part] = of_heads.transpose(0, 1).flatten(1, 2)
    return found[0], found[1], found[2]


@_packed_attention_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scaling: float, window: int) -> Tensor:
    return q.new_empty((1, q.shape[2], q.shape[1], v.shape[3]))


@_packed_attention_backward_op.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scaling: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scaling, ctx.window = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return (*_packed_attention_backward_op(gradient, *ctx.saved_tensors, ctx.scaling, ctx.window), None, None, None)


_packed_attention_op.register_autograd(_backward, setup_context=_setup_context)
AttentionInterface.register(OPAQUE_ATTENTION, opaque_attention)
