"""Log-probabilities of tokens from hidden states, without materializing all logits.

Suffixes: _T tokens, _C tokens of one chunk, _H hidden size, _V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    does not grow with tokens x vocabulary. A single chunk is not recomputed.
    """
    if chunk_tokens is None:
        at_once = LOGITS_AT_ONCE.get(hidden_TH.device.type, LOGITS_AT_ONCE["cuda"])
        chunk_tokens = max(1, at_once // len(head_VH))
    if len(hidden_TH) <= chunk_tokens and not _multiplies_half(head_VH):
        return _in_one_chunk(hidden_TH, head_VH, targets_T, temperature, with_entropy, softcap)
    logprobs_T, entropy_T = _InChunks.apply(  # type: ignore[no-untyped-call]
        hidden_TH, head_VH, targets_T, temperature, with_entropy, softcap, chunk_tokens
    )
    return logprobs_T, entropy_T


def _in_one_chunk(
    hidden_TH: Tensor,
    head_VH: Tensor,
    targets_T: Tensor,
    temperature: float,
    with_entropy: bool,
    softcap: float | None,
) -> tuple[Tensor, Tensor | None]:
    dtype = _accumulation_dtype(head_VH.dtype)
    logits_TV = hidden_TH.to(dtype) @ head_VH.to(dtype).t()
    if softcap is not None:
        logits_TV = softcap * torch.tanh(logits_TV / softcap)
    log_p_TV = torch.log_softmax(logits_TV if temperature == 1.0 else logits_TV / temperature, -1)
    entropy_T = -torch.linalg.vecdot(log_p_TV.exp(), log_p_TV) if with_entropy else None
    return log_p_TV.gather(-1, targets_T[:, None]).squeeze(-1), entropy_T


class _InChunks(torch.autograd.Function):
    """An entropy that no loss uses costs nothing in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        head_VH: Tensor,
        targets_T: Tensor,
        temperature: float,
        with_entropy: bool,
        softcap: float | None,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor | None]:
        chunks = _Chunks(hidden_TH, head_VH, temperature, softcap, chunk_tokens)
        logprobs_T = hidden_TH.new_empty(len(hidden_TH), dtype=chunks.dtype)
        lse_T = torch.empty_like(logprobs_T)
        entropy_T = torch.empty_like(logprobs_T) if with_entropy else None
        for part in chunks.parts:
            logits_CV = chunks.logits(part)
            at_target_C = logits_CV.gather(-1, targets_T[part, None]).squeeze(-1)
            highest_C1 = logits_CV.amax(-1, keepdim=True)
            logits_CV.sub_(highest_C1)
            if entropy_T is None:
                lse_C = logits_CV.exp_().sum(-1).log_()
            else:
                weights_CV = logits_CV.exp()
                sum_C = weights_CV.sum(-1)
                lse_C = sum_C.log()
                entropy_T[part] = lse_C - torch.linalg.vecdot(weights_CV, logits_CV) / sum_C
            lse_T[part] = lse_C.add_(highest_C1.squeeze(-1))
            logprobs_T[part] = at_target_C - lse_C
        ctx.save_for_backward(hidden_TH, head_VH, targets_T, lse_T, entropy_T)
        ctx.temperature, ctx.softcap, ctx.chunk_tokens = temperature, softcap, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_T: Tensor | None, grad_entropy_T: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_TH, head_VH, targets_T, lse_T, entropy_T = ctx.saved_tensors
        if grad_logprobs_T is None:
            grad_logprobs_T = torch.zeros_like(lse_T)
        chunks = _Chunks(hidden_TH, head_VH, ctx.temperature, ctx.softcap, ctx.chunk_tokens)
        grads = _Gradients(chunks, *ctx.needs_input_grad[:2])
        for part in chunks.parts:
            grad_C1 = grad_logprobs_T[part, None]
            logits_CV = chunks.logits(part)
            cap_slope_CV = chunks.cap_slope(logits_CV)
            log_p_CV = logits_CV.sub_(lse_T[part, None])
            if grad_entropy_T is None:
                grad_CV = log_p_CV.exp_().mul_(-grad_C1)
            else:
                slope_CV = (log_p_CV + entropy_T[part, None]).mul_(grad_entropy_T[part, None]).add_(grad_C1)
                grad_CV = log_p_CV.exp_().mul_(slope_CV).neg_()
            grad_CV.scatter_add_(-1, targets_T[part, None], grad_C1)
            grads.add(part, grad_CV if cap_slope_CV is None else grad_CV.mul_(cap_slope_CV))
        return grads.hidden_TH, grads.of_head(), None, None, None, None, None


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _multiplies_half(head_VH: Tensor) -> bool:
    """Whether to multiply in half precision and accumulate in float32, as GPUs do. A CPU is faster, and as exact, with
    a float32 copy of the head."""
    return head_VH.is_cuda and _accumulation_dtype(head_VH.dtype) != head_VH.dtype


class _Chunks:
    """Logits chunk by chunk, in one reused buffer."""

    def __init__(
        self, hidden_TH: Tensor, head_VH: Tensor, temperature: float, softcap: float | None, chunk_tokens: int
    ) -> None:
        self.dtype = _accumulation_dtype(head_VH.dtype)
        self.multiplies_half = _multiplies_half(head_VH)
        self.head_VH = head_VH if self.multiplies_half else head_VH.to(self.dtype)
        self.given_dtype = head_VH.dtype
        self.hidden_TH = hidden_TH
        self.inverse_temperature = 1.0 / temperature
        self.softcap = softcap
        starts = range(0, len(hidden_TH), chunk_tokens)
        self.parts = [slice(start, min(start + chunk_tokens, len(hidden_TH))) for start in starts]
        self._memory = hidden_TH.new_empty(chunk_tokens, len(head_VH), dtype=self.dtype)

    def hidden(self, part: slice) -> Tensor:
        return self.hidden_TH[part].to(self.head_VH.dtype)

    def logits(self, part: slice) -> Tensor:
        """Divided by the temperature; valid until the next call."""
        out_CV = self._memory[: part.stop - part.start]
        if self.multiplies_half:
            torch.mm(self.hidden(part), self.head_VH.t(), out_dtype=self.dtype, out=out_CV)
        else:
            torch.mm(self.hidden(part), self.head_VH.t(), out=out_CV)
        if self.softcap is not None:
            out_CV.div_(self.softcap).tanh_().mul_(self.softcap)
        return out_CV if self.inverse_temperature == 1.0 else out_CV.mul_(self.inverse_temperature)

    def cap_slope(self, logits_CV: Tensor) -> Tensor | None:
        """The derivative of the softcap at these logits; None without a softcap."""
        if self.softcap is None:
            return None
        return (logits_CV / (self.softcap * self.inverse_temperature)).square_().neg_().add_(1.0)


class _Gradients:
    """Gradients of hidden states and head, accumulated from those of the logits."""

    def __init__(self, chunks: _Chunks, needs_hidden: bool, needs_head: bool) -> None:
        self._chunks = chunks
        self.hidden_TH = torch.empty_like(chunks.hidden_TH) if needs_hidden else None
        self._head_VH = torch.zeros_like(chunks.head_VH, dtype=chunks.dtype) if needs_head else None

    def add(self, part: slice, grad_CV: Tensor) -> None:
        chunks = self._chunks
        if chunks.inverse_temperature != 1.0:
            grad_CV.mul_(chunks.inverse_temperature)
        grad_CV = grad_CV.to(chunks.head_VH.dtype)
        if self.hidden_TH is not None:
            self.hidden_TH[part] = grad_CV @ chunks.head_VH
        if self._head_VH is None:
            return
        if chunks.multiplies_half:
            self._head_VH.add_(torch.mm(grad_CV.t(), chunks.hidden(part), out_dtype=chunks.dtype))
        else:
            self._head_VH.addmm_(grad_CV.t(), chunks.hidden(part))

    def of_head(self) -> Tensor | None:
        return None if self._head_VH is None else self._head_VH.to(self._chunks.given_dtype)
