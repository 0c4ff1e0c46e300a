"""What is computed from the logits of a chunk of tokens: log-probabilities and entropy, and the gradient of the logits.

On a GPU each of these is compiled into a kernel: one reads the logits at most twice, with or without the entropy, the
other reads them once and writes the gradient (capped logits may be stored once more). On a CPU, and without a compiler,
they are a few operations in the memory of the logits.

Suffixes: _C tokens of the chunk, _V vocabulary.
"""

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger(__name__)

aten: Any = torch.ops.aten


class TokenValues(NamedTuple):
    """`normalizer` is the logarithm of the sum over the vocabulary: what a compiled kernel needs for the gradient to
    read the logits only once; None if not compiled."""

    logprobs_C: Tensor
    entropy_C: Tensor | None
    normalizer_C: Tensor | None


def token_values(
    logits_CV: Tensor,
    targets_C: Tensor,
    temperature: float,
    softcap: float | None,
    with_entropy: bool,
    in_place: bool,
) -> TokenValues:
    """If `in_place`, the logits become log-probabilities of the whole vocabulary."""
    out_CV = logits_CV if in_place else None
    if softcap is not None:
        capped_CV = torch.tanh(torch.div(logits_CV, softcap, out=out_CV), out=out_CV)
        logits_CV = torch.mul(capped_CV, softcap, out=out_CV)
    if temperature != 1.0:
        logits_CV = torch.div(logits_CV, temperature, out=out_CV)
    if not in_place:
        return _values_in_two_passes(logits_CV, targets_C, with_entropy)
    log_p_CV = torch.log_softmax(logits_CV, -1, out=out_CV)
    entropy_C = -log_p_CV.exp().mul_(log_p_CV).sum(-1) if with_entropy else None
    return TokenValues(log_p_CV.gather(-1, targets_C[:, None]).squeeze(-1), entropy_C, None)


def _values_in_two_passes(logits_CV: Tensor, targets_C: Tensor, with_entropy: bool) -> TokenValues:
    """The largest logit, then both sums in the same pass: entropy = log(sum of exp x) - (sum of x exp x) / (sum of
    exp x), for logits x less the largest one."""
    highest_C1 = logits_CV.amax(-1, keepdim=True)
    lower_CV = logits_CV - highest_C1
    exp_CV = lower_CV.exp()
    sum_C = exp_CV.sum(-1)
    entropy_C = sum_C.log() - (exp_CV * lower_CV).sum(-1) / sum_C if with_entropy else None
    normalizer_C = sum_C.log() + highest_C1.squeeze(-1)
    return TokenValues(logits_CV.gather(-1, targets_C[:, None]).squeeze(-1) - normalizer_C, entropy_C, normalizer_C)


class TokenGradients(NamedTuple):
    """Those of the values of tokens. `entropy_C` is the entropy; None, as its gradient, where no loss uses it."""

    logprobs_C: Tensor
    entropy_grad_C: Tensor | None
    entropy_C: Tensor | None


def logit_gradient(
    logits_CV: Tensor,
    targets_C: Tensor,
    normalizer_C: Tensor | None,
    gradients: TokenGradients,
    temperature: float,
    softcap: float | None,
    dtype: torch.dtype,
    in_place: bool,
) -> Tensor:
    """In `dtype`. If `in_place`, the logits are overwritten."""
    out_CV, capped_CV = logits_CV if in_place else None, None
    if softcap is not None:
        capped_CV = torch.tanh(torch.div(logits_CV, softcap, out=out_CV))
        logits_CV = torch.mul(capped_CV, softcap, out=out_CV)
    if temperature != 1.0:
        logits_CV = torch.div(logits_CV, temperature, out=out_CV)
    if normalizer_C is None:
        log_p_CV = torch.log_softmax(logits_CV, -1, out=out_CV)
    else:
        log_p_CV = logits_CV - normalizer_C[:, None]
    grad_CV = log_softmax_gradient(log_p_CV, targets_C, gradients, in_place)
    if temperature != 1.0:
        grad_CV = torch.div(grad_CV, temperature, out=grad_CV if in_place else None)
    if capped_CV is not None:
        grad_CV = aten.tanh_backward(grad_CV, capped_CV)
    return grad_CV.to(dtype)


def log_softmax_gradient(log_p_CV: Tensor, targets_C: Tensor, gradients: TokenGradients, in_place: bool) -> Tensor:
    """From log-probabilities of the whole vocabulary: gradient x (one at the target - probability), and that of the
    entropy."""
    grad_C1, targets_C1 = gradients.logprobs_C[:, None], targets_C[:, None]
    slope = -grad_C1
    if gradients.entropy_grad_C is not None and gradients.entropy_C is not None:
        of_entropy_C1 = -gradients.entropy_grad_C[:, None]
        slope = torch.addcmul(slope + of_entropy_C1 * gradients.entropy_C[:, None], log_p_CV, of_entropy_C1)
    if in_place:
        return log_p_CV.exp_().mul_(slope).scatter_add_(-1, targets_C1, grad_C1)
    is_target_CV = torch.arange(log_p_CV.shape[1], device=log_p_CV.device) == targets_C1
    return log_p_CV.exp() * slope + torch.where(is_target_CV, grad_C1, 0.0)


def kept_gradient(log_p_TV: Tensor, targets_T: Tensor, gradients: TokenGradients, temperature: float) -> Tensor:
    """The same from log-probabilities that are kept as they are: the way of autograd, bit by bit, where no loss uses
    the entropy."""
    if gradients.entropy_grad_C is None:
        grad_TV = torch.zeros_like(log_p_TV).scatter_(-1, targets_T[:, None], gradients.logprobs_C[:, None])
        aten._log_softmax_backward_data.out(grad_TV, log_p_TV, -1, log_p_TV.dtype, out=grad_TV)
    else:
        grad_TV = log_softmax_gradient(log_p_TV.clone(), targets_T, gradients, in_place=True)
    return grad_TV if temperature == 1.0 else grad_TV.div_(temperature)


COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "triton")
SLOWER = "log-probabilities take about twice as long: "

_failures: list[str] = []
"""Errors of the compiler: after one nothing more is compiled here."""


def compiles(device_type: str) -> bool:
    """Whether kernels are compiled for the device."""
    return device_type == "cuda" and not _failures and can_compile()


@cache
def can_compile() -> bool:
    """Logs what is missing."""
    if lacking := lacking_for_kernels():
        log.warning("%storch.compile needs %s", SLOWER, " and ".join(lacking))
    return not lacking


def is_of_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith(COMPILER_MODULES)


def lacking_for_kernels() -> list[str]:
    """What torch.compile lacks here for kernels of a GPU. Triton compiles its launchers as extensions of Python."""
    from torch.utils._triton import has_triton  # importing it takes long

    headers = Path(sysconfig.get_path("include"), "Python.h")
    return [
        *([] if has_triton() else ["Triton"]),
        *([] if os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") else ["a C compiler"]),
        *([] if headers.exists() else [f"the headers of Python ({headers})"]),
    ]


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For any number of tokens. As it is, with a warning, if the compiler raises an error."""
    kernel = torch.compile(function)

    def call(logits_CV: Tensor, targets_C: Tensor, *rest: Any) -> Any:
        if _failures:
            return function(logits_CV, targets_C, *rest)
        given = [each for argument in rest for each in (argument if isinstance(argument, tuple) else (argument,))]
        for tensor in (logits_CV, targets_C, *given):
            if isinstance(tensor, Tensor):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            with torch._dynamo.config.patch(suppress_errors=False):
                return kernel(logits_CV, targets_C, *rest)
        except Exception as error:
            if not is_of_compiler(error):
                raise
            _failures.append(" ".join(str(error).split())[:400])
            log.warning("%stheir kernels cannot be compiled (%s: %s)", SLOWER, type(error).__name__, _failures[0])
            return function(logits_CV, targets_C, *rest)

    return call
