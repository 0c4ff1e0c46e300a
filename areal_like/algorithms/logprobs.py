"""Log-probabilities of tokens from hidden states, without materializing all logits.

Suffixes: _T tokens, _C tokens of one chunk, _H hidden size, _V vocabulary.
"""

from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from areal_like.algorithms.logit_kernels import (
    TokenGradients,
    compiled,
    compiles,
    kept_gradient,
    logit_gradient,
    token_values,
)

LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**28}
"""Maximum number of logits in memory at a time, by device type. A GPU needs large matrix products."""


def token_logprobs(
    hidden_TH: Tensor,
    head_VH: Tensor,
    targets_T: Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
    *,
    softcap: float | None = None,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ head.T / temperature) at the targets, and the entropy of that distribution where
    `with_entropy`. With `softcap` logits x are softcap * tanh(x / softcap), before the temperature.

    Both are float32 (float64 for float64 states), as are the logits, whatever the dtype of the model. Pass only tokens
    in the loss: prompts need no logits. Tokens are processed in chunks, and again in the backward pass, so that memory
    does not grow with tokens x vocabulary. On a CPU a single chunk is not computed again.
    """
    if chunk_tokens is None:
        at_once = LOGITS_AT_ONCE.get(hidden_TH.device.type, LOGITS_AT_ONCE["cuda"])
        chunk_tokens = max(1, at_once // len(head_VH))
    settings = _Settings(temperature, with_entropy, softcap, chunk_tokens)
    logprobs_T, entropy_T = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_TH, head_VH, targets_T, settings
    )
    return logprobs_T, entropy_T


class _Settings(NamedTuple):
    temperature: float
    with_entropy: bool
    softcap: float | None
    chunk_tokens: int


class _TokenLogprobs(torch.autograd.Function):
    """An entropy that no loss uses costs nothing in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, head_VH: Tensor, targets_T: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor | None]:
        chunks = _Chunks(hidden_TH, head_VH, settings)
        kernel = compiled(token_values) if chunks.compiles else token_values
        logprobs_T = hidden_TH.new_empty(len(hidden_TH), dtype=chunks.dtype)
        normalizer_T = torch.empty_like(logprobs_T) if chunks.compiles else None
        entropy_T = torch.empty_like(logprobs_T) if settings.with_entropy else None
        logits_CV = None
        for part in chunks.parts:
            logits_CV = chunks.logits(part)
            values = kernel(
                logits_CV,
                targets_T[part],
                settings.temperature,
                settings.softcap,
                settings.with_entropy,
                not chunks.compiles,
            )
            for whole_T, of_part_C in zip((logprobs_T, entropy_T, normalizer_T), values, strict=True):
                if whole_T is not None:
                    whole_T[part] = of_part_C
        is_kept = len(chunks.parts) == 1 and not chunks.compiles and settings.softcap is None
        log_p_TV = logits_CV if is_kept and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden_TH, head_VH, targets_T, normalizer_T, entropy_T, log_p_TV)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return logprobs_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_T: Tensor | None, grad_entropy_T: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_TH, head_VH, targets_T, normalizer_T, entropy_T, log_p_TV = ctx.saved_tensors
        settings: _Settings = ctx.settings
        chunks = _Chunks(hidden_TH, head_VH, settings)
        if grad_logprobs_T is None:
            grad_logprobs_T = hidden_TH.new_zeros(len(hidden_TH), dtype=chunks.dtype)
        grads = _Gradients(chunks, *ctx.needs_input_grad[:2])
        kernel = compiled(logit_gradient) if chunks.compiles else logit_gradient
        for part in chunks.parts:
            gradients = TokenGradients(grad_logprobs_T[part], None, None)
            if grad_entropy_T is not None:
                gradients = TokenGradients(grad_logprobs_T[part], grad_entropy_T[part], entropy_T[part])
            if log_p_TV is not None:
                grad_CV = kept_gradient(log_p_TV, targets_T, gradients, settings.temperature)
            else:
                grad_CV = kernel(
                    chunks.logits(part),
                    targets_T[part],
                    None if normalizer_T is None else normalizer_T[part],
                    gradients,
                    settings.temperature,
                    settings.softcap,
                    chunks.head_VH.dtype,
                    not chunks.compiles,
                )
            grads.add(part, grad_CV)
        return grads.hidden_TH, grads.of_head(), None, None


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def multiplies_half(device: torch.device) -> bool:
    """Whether to multiply in half precision and accumulate in float32, as GPUs do. A CPU is faster, and as exact, with
    a float32 copy of the head."""
    return device.type == "cuda"


@cache
def adds_to_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch adds a product in half precision to a float32 matrix, without another one for the product."""
    total, factor = torch.ones(8, 8, device=device), torch.full((8, 8), 0.5, dtype=dtype, device=device)
    try:
        torch.addmm(total, factor, factor, out_dtype=torch.float32, out=total)
    except RuntimeError:  # some versions refuse these types
        return False
    return bool((total == 3.0).all())


class _Chunks:
    """Logits chunk by chunk, in one reused buffer."""

    def __init__(self, hidden_TH: Tensor, head_VH: Tensor, settings: _Settings) -> None:
        self.dtype = _accumulation_dtype(head_VH.dtype)
        self.compiles = compiles(head_VH.device.type)
        self.multiplies_half = head_VH.dtype != self.dtype and multiplies_half(head_VH.device)
        self.head_VH = head_VH if self.multiplies_half else head_VH.to(self.dtype)
        self.given_dtype = head_VH.dtype
        self.hidden_TH = hidden_TH
        starts = range(0, len(hidden_TH), settings.chunk_tokens)
        self.parts = [slice(start, min(start + settings.chunk_tokens, len(hidden_TH))) for start in starts]
        self._shape = min(settings.chunk_tokens, len(hidden_TH)), len(head_VH)

    def hidden(self, part: slice) -> Tensor:
        return self.hidden_TH[part].to(self.head_VH.dtype)

    def logits(self, part: slice) -> Tensor:
        """Valid until the next call."""
        out_CV = self._memory[: part.stop - part.start]
        if self.multiplies_half:
            return torch.mm(self.hidden(part), self.head_VH.t(), out_dtype=self.dtype, out=out_CV)
        return torch.mm(self.hidden(part), self.head_VH.t(), out=out_CV)

    @cached_property
    def _memory(self) -> Tensor:
        return self.hidden_TH.new_empty(self._shape, dtype=self.dtype)


class _Gradients:
    """Gradients of hidden states and head, accumulated from those of the logits."""

    def __init__(self, chunks: _Chunks, needs_hidden: bool, needs_head: bool) -> None:
        self._chunks, self._needs_head = chunks, needs_head
        self.hidden_TH = torch.empty_like(chunks.hidden_TH) if needs_hidden else None
        self._head_VH: Tensor | None = None

    def add(self, part: slice, grad_CV: Tensor) -> None:
        chunks = self._chunks
        grad_CV = grad_CV.to(chunks.head_VH.dtype)
        if self.hidden_TH is not None:
            self.hidden_TH[part] = grad_CV @ chunks.head_VH
        if not self._needs_head:
            return
        grad_VC, hidden_CH, head_VH = grad_CV.t(), chunks.hidden(part), self._head_VH
        output: Any = {"out_dtype": chunks.dtype} if chunks.multiplies_half else {}
        if head_VH is None:
            self._head_VH = torch.mm(grad_VC, hidden_CH, **output)
        elif not chunks.multiplies_half or adds_to_float32(head_VH.device, chunks.head_VH.dtype):
            torch.addmm(head_VH, grad_VC, hidden_CH, **output, out=head_VH)
        else:
            head_VH.add_(torch.mm(grad_VC, hidden_CH, **output))

    def of_head(self) -> Tensor | None:
        if not self._needs_head:
            return None
        if self._head_VH is None:  # no tokens
            return torch.zeros_like(self._chunks.head_VH, dtype=self._chunks.given_dtype)
        return self._head_VH.to(self._chunks.given_dtype)
