"""torch.compile of single layers: the first one is compiled, the others reuse its code.

The split of a micro-batch into sequences must not become part of the graph, or each micro-batch would be compiled anew.
GPU kernels take the boundaries as a tensor. Elsewhere attention loops over sequences, which is one opaque operation for
the compiler, with a known output shape and backward.
"""

import contextlib
import gc
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from transformers import AttentionInterface, PreTrainedModel

from areal_like.algorithms.logit_kernels import is_of_compiler, lacking_for_kernels
from areal_like.config.allocation.models import trained_models
from areal_like.config.problems import ConfigError, plural
from areal_like.config.sections.train_engine import CompileConfig, TrainEngineConfig
from areal_like.data.user_code import config_error
from areal_like.process.errors import Failure, brief_reason
from areal_like.training.attention import REGISTERED_NAMES, causal_mask, packed_attention
from areal_like.training.attention_kernels import is_gpu
from areal_like.training.length_groups import LengthGroup, group_by_length
from areal_like.training.rank_vote import RankVote
from areal_like.training.world import World

COMPILERS = ("c++", "g++", "clang++")

RECOMPILE_LIMIT = 32
"""A layer is compiled once for each combination of gradient or none, kernel of attention, and window or none."""

aten: Any = torch.ops.aten

OPAQUE_ATTENTION = "areal_like_packed_hidden"
"""The name registered with transformers."""

log = logging.getLogger(__name__)


def compile_layers(
    model: PreTrainedModel,
    layers: list[nn.Module],
    config: TrainEngineConfig,
    section: str,
    world: World,
    shard: Callable[[nn.Module], nn.Module],
    forward_context: contextlib.AbstractContextManager[object],
) -> None:
    """In place and before sharding: FSDP's hooks around a layer are not compiled, and recomputation calls what is
    compiled. First a copy of each kind of layer is rehearsed, which `shard` shards over this rank alone. If the
    rehearsal of any rank fails, all ranks either raise, or run the layers as they are. `section` is the key of
    `config`, for messages."""
    assert config.compile is not None
    began, usual, required = time.monotonic(), model.config._attn_implementation, config.compile.required
    problem, kinds = "", 0
    try:
        _prepare(model, config.compile, section, world.device)
        kinds = _rehearsed(model, layers, config, section, world.device, shard, forward_context)
    except ConfigError as refusal:
        problem = str(refusal)
    _free_rehearsal(world.device)
    vote = RankVote(world, config.dist_timeout_s, f"{section}.dist_timeout_s")
    problems = vote.gather(problem, "whether its layers can be compiled")
    took = f"{time.monotonic() - began:.1f} s"
    if any(problems):
        if required:
            key, _, message = next(filter(None, problems)).partition(": ")
            raise config_error(key, message)
        if model.config._attn_implementation != usual:
            model.set_attn_implementation(usual)
        torch._dynamo.reset()
        log.warning("%s; layers run uncompiled, as was found in %s", next(filter(None, problems)), took)
        return
    for layer in layers:
        _compile(layer, config.compile)
    rehearsal = f"; a rehearsal of {plural(kinds, 'kind')} took {took}" if kinds else ""
    log.info("%s.compile: layers are compiled%s", section, rehearsal)


def _prepare(model: PreTrainedModel, config: CompileConfig, section: str, device: torch.device) -> None:
    """Refuses what cannot be compiled here, and sets the attention that can."""
    if not is_gpu(device) and not has_compiler():
        message = (
            f"torch.compile needs a C++ compiler on a CPU, such as g++; install one, or set {section}.compile=null"
        )
        raise config_error(f"{section}.compile", message)
    if is_gpu(device) and (lacking := lacking_for_kernels()):
        message = f"torch.compile needs {' and '.join(lacking)} on a GPU; install it, or set {section}.compile=null"
        raise config_error(f"{section}.compile", message)
    if not is_gpu(device) and model.config._attn_implementation == REGISTERED_NAMES["sdpa"]:
        if missing := _missing(model, section):
            message = f"on a CPU compiled attention does not support {missing} set {section}.compile=null"
            raise config_error(f"{section}.compile", message)
        model.set_attn_implementation(OPAQUE_ATTENTION)
    if is_gpu(device) and config.fullgraph and (missing := _missing(model, section)):
        message = f"on a GPU attention is not compiled with {missing} set {section}.compile.fullgraph=false"
        raise config_error(f"{section}.compile.fullgraph", message)
    # Results in float32 are to be exact, so these are not wanted.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)


def _rehearsed(
    model: PreTrainedModel,
    layers: list[nn.Module],
    config: TrainEngineConfig,
    section: str,
    device: torch.device,
    shard: Callable[[nn.Module], nn.Module],
    forward_context: contextlib.AbstractContextManager[object],
) -> int:
    """The number of kinds of layers. Raises ConfigError."""
    from areal_like.training import compile_rehearsal  # importing the compiler takes seconds

    assert config.compile is not None
    compile_config, key = config.compile, f"{section}.compile"
    trial = compile_rehearsal.Trial(
        shard=shard,
        compile=lambda layer: _compile(layer, compile_config),
        forward_context=forward_context,
        trains=config.optimizer is not None,
        every_kernel=compile_config.required,
        dtype=getattr(torch, config.dtype),
        device=device,
    )
    remedy = f"set {key}=null to run them uncompiled"
    try:
        with backward_in_this_thread():
            return compile_rehearsal.rehearse(model, layers, trial)
    except (compile_rehearsal.CannotRehearse, compile_rehearsal.CompilesAnew) as doubt:
        if not compile_config.required:
            raise config_error(key, f"{doubt}; {remedy}") from doubt
        log.warning("%s: %s; layers are compiled, as %s says", key, doubt, key)
        return 0
    except compile_rehearsal.Unequal as difference:
        message = f"compiled layers do not compute what uncompiled ones do ({difference}); {remedy}"
        raise config_error(key, message) from difference
    except Exception as fault:  # a compiler raises anything
        log.info("%s: the compiler raised", key, exc_info=True)
        raise config_error(key, f"layers cannot be compiled ({brief_reason(fault)}); {remedy}") from fault


def _free_rehearsal(device: torch.device) -> None:
    """Hooks of sharding keep the rehearsed layers in cycles, and torch what they have used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _compile(layer: nn.Module, config: CompileConfig) -> None:
    # Lengths differ from one micro-batch to the next.
    layer.compile(fullgraph=config.fullgraph, dynamic=True)


def fall_back_later(config: Any) -> None:
    """What the rehearsal does not meet, such as inputs without gradient in the first layer, runs uncompiled if it
    cannot be compiled, and torch's log says why. For that a graph's backward is compiled with its forward. torch knows
    this for a process alone: not if layers of any model must be compiled."""
    if any(engine.compile is not None and engine.compile.required for _, engine in trained_models(config)):
        return
    torch._dynamo.config.suppress_errors = True
    if hasattr(functorch_config, "force_non_lazy_backward_lowering"):
        functorch_config.force_non_lazy_backward_lowering = True


class CompiledLayers:
    """The compiled layers of an engine after its start."""

    def __init__(self, model: nn.Module, section: str) -> None:
        self.num = sum(module._compiled_call_impl is not None for module in model.modules())
        self._section = section

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Around passes of this model, since torch counts for the process: warns if they met code that torch does not
        compile, such as after too many graphs of the same code."""
        refused = _refused_frames()
        yield
        if self.num and _refused_frames() > refused:
            log.warning(
                "%s.compile: torch runs some of the layers' code uncompiled, after %d graphs or an error that its own "
                "warning names; set %s.compile=null if steps are slower",
                *(self._section, torch._dynamo.config.recompile_limit, self._section),
            )


def backward_in_this_thread() -> contextlib.AbstractContextManager[object]:
    """Else a backward pass on a GPU runs in a thread of autograd, and torch keeps its compiler's settings per thread:
    there a layer that is computed again would be compiled without those that are made here."""
    return torch.autograd.set_multithreading_enabled(False)


def _refused_frames() -> int:
    frames = torch._dynamo.utils.counters["frames"]
    return int(frames["total"] - frames["ok"])


def compile_failure(error: BaseException, config: Any) -> Failure | None:
    """Of an error of the compiler in a step; else None. Kernels of the head report theirs themselves."""
    if not is_of_compiler(error):
        return None
    keys = [f"{name}.compile" for name, engine in trained_models(config) if engine.compile is not None]
    reason, remedy = brief_reason(error), " and ".join(f"{key}=null" for key in keys)
    return Failure(f"{', '.join(keys)}: layers cannot be compiled ({reason}); set {remedy}") if keys else None


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
