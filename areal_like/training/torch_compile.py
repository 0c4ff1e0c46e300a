"""torch.compile of single layers: the first one is compiled, the others reuse its code.

The split of a micro-batch into sequences must not become part of the graph, or each micro-batch would be compiled anew.
GPU kernels take the boundaries as a tensor. Elsewhere attention loops over sequences, which is one opaque operation for
the compiler, with a known output shape and backward.
"""

import os
import shutil
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from areal_like.config.sections.train_engine import CompileConfig
from areal_like.data.user_code import config_error
from areal_like.training.attention import REGISTERED_NAMES, causal_mask, packed_attention
from areal_like.training.attention_kernels import is_gpu
from areal_like.training.length_groups import LengthGroup, group_by_length

COMPILERS = ("c++", "g++", "clang++")

RECOMPILE_LIMIT = 32
"""A layer is compiled once for each combination of gradient or none, kernel of attention, and window or none."""

aten: Any = torch.ops.aten

OPAQUE_ATTENTION = "areal_like_packed_hidden"
"""The name registered with transformers."""


def compile_layers(
    model: PreTrainedModel, layers: list[nn.Module], config: CompileConfig, section: str, device: torch.device
) -> None:
    """In place and before sharding: FSDP's hooks around a layer are not compiled. `section` is the key of the engine's
    section, for messages."""
    if not is_gpu(device) and not has_compiler():
        message = (
            f"torch.compile needs a C++ compiler on a CPU, such as g++; install one, or set {section}.compile=null"
        )
        raise config_error(f"{section}.compile", message)
    if not is_gpu(device) and model.config._attn_implementation == REGISTERED_NAMES["sdpa"]:
        if missing := _missing(model, section):
            message = f"on a CPU compiled attention does not support {missing} set {section}.compile=null"
            raise config_error(f"{section}.compile", message)
        model.set_attn_implementation(OPAQUE_ATTENTION)
    if is_gpu(device) and config.fullgraph and (missing := _missing(model, section)):
        message = f"on a GPU attention is not compiled with {missing} set {section}.compile.fullgraph=false"
        raise config_error(f"{section}.compile.fullgraph", message)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    for layer in layers:
        # Lengths differ from one micro-batch to the next.
        layer.compile(fullgraph=config.fullgraph, dynamic=True)


def has_compiler() -> bool:
    return "CXX" in os.environ or any(map(shutil.which, COMPILERS))


def _missing(model: PreTrainedModel, section: str) -> str:
    """What the model needs that compiled attention lacks, and a remedy if there is one; or nothing."""
    if any(getattr(module, "attention_dropout", 0.0) for module in model.modules()):
        return f"dropout, which this model uses: set {section}.disable_dropout=true, or"
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        return "capped scores, which this model uses:"
    return ""


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
    """With the signature that transformers expects."""
    assert not dropout and softcap is None, "refused by _check_supported"
    assert cu_seq_lens_q is not None
    return _packed_attention_op(query, key, value, cu_seq_lens_q, scaling, sliding_window or 0), None


@torch.library.custom_op("areal_like::packed_attention", mutates_args=())
def _packed_attention_op(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scaling: float, window: int) -> Tensor:
    groups = group_by_length(ends.diff().tolist())
    return packed_attention(nn.Module(), q, k, v, None, scaling, sliding_window=window or None, length_groups=groups)[0]


@torch.library.custom_op("areal_like::packed_attention_backward", mutates_args=())
def _packed_attention_backward_op(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scaling: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Recomputes the forward pass: a custom operation can only save tensors of known shape. Autograd does not work
    inside it, so that the kernel's backward is called directly."""
    gradients_qkv = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v)]
    out_gradient = gradient.transpose(1, 2)
    for group in group_by_length(ends.diff().tolist()):
        span = slice(group.start, group.start + group.num * group.length)

        def batched(tensor: Tensor, span: slice = span, group: LengthGroup = group) -> Tensor:
            """[sequences, heads, length, head size], each key and value as often as there are queries to it."""
            grouped = tensor[0, :, span].reshape(tensor.shape[1], group.num, group.length, -1).transpose(0, 1)
            return grouped.repeat_interleave(q.shape[1] // tensor.shape[1], 1)

        inputs, mask = [batched(tensor) for tensor in (q, k, v)], None
        if window and group.length > window:
            mask = torch.zeros(group.length, group.length, dtype=q.dtype, device=q.device)
            mask.masked_fill_(~causal_mask(group.length, group.length, window, q.device), float("-inf"))
        options = {"attn_mask": mask, "scale": scaling}
        is_causal = mask is None
        out, normalizer = aten._scaled_dot_product_flash_attention_for_cpu(*inputs, 0.0, is_causal, **options)
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            batched(out_gradient), *inputs, out, normalizer, 0.0, is_causal, **options
        )
        for into, each in zip(gradients_qkv, gradients, strict=True):
            of_heads = each.unflatten(1, (into.shape[1], -1)).sum(2)
            into[0, :, span] = of_heads.transpose(0, 1).flatten(1, 2)
    return gradients_qkv[0], gradients_qkv[1], gradients_qkv[2]


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
