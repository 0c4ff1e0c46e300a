"""Logit processors, for rows that ask for more than a temperature.

In the order of transformers: repetition and frequency penalties, stop tokens that may not come yet, temperature, top-k,
top-p, min-p. P such rows, V tokens of vocabulary.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

MAX_PROCESSED_AT_ONCE = 1 << 23
"""Logits processed at once: several copies of them are in memory."""
NUCLEUS_CANDIDATES = 1024
"""Most likely tokens that top-p looks at first: sorting the whole vocabulary is slow."""


class UsedProcessors(NamedTuple):
    """What at least one row asks for. Known to the host: to ask a GPU would mean to wait for it."""

    repetition: bool
    frequency: bool
    max_top_k: int
    top_p: bool
    min_p: bool


class SamplingTensors(NamedTuple):
    """Sampling parameters of the rows at `places` of a batch. `top_k` 0 is no limit."""

    places_P: Tensor
    temperature_P: Tensor
    top_k_P: Tensor
    top_p_P: Tensor
    min_p_P: Tensor
    frequency_P: Tensor
    repetition_P: Tensor
    prompt_PS: Tensor
    """Distinct tokens of the prompt, padded with one of them."""
    answer_PA: Tensor
    length_P: Tensor
    """Number of tokens in `answer`."""
    forbidden_2F: Tensor
    """Rows among these, and the tokens that must not come there."""
    used: UsedProcessors


def process_logits(logits_RV: Tensor, parts: Iterable[SamplingTensors]) -> Tensor:
    """The logits in float32, processed in the rows at `places`. The sampler divides by the temperature."""
    logits_RV = logits_RV.float()
    for part in parts:
        logits_RV.index_copy_(0, part.places_P, _process(logits_RV.index_select(0, part.places_P), part))
    return logits_RV


def _process(logits_PV: Tensor, sampling: SamplingTensors) -> Tensor:
    is_used_PA = torch.arange(sampling.answer_PA.shape[1], device=logits_PV.device) < sampling.length_P[:, None]
    if sampling.used.repetition:
        answer_PA = torch.where(is_used_PA, sampling.answer_PA, sampling.prompt_PS[:, :1])
        _penalize_repetition(logits_PV, torch.cat([sampling.prompt_PS, answer_PA], 1), sampling.repetition_P[:, None])
    if sampling.used.frequency:
        counts_PV = torch.zeros_like(logits_PV).scatter_add_(1, sampling.answer_PA, is_used_PA.float())
        logits_PV -= sampling.frequency_P[:, None] * counts_PV
    logits_PV[sampling.forbidden_2F[0], sampling.forbidden_2F[1]] = -torch.inf
    used = sampling.used
    if used.max_top_k or used.top_p or used.min_p:
        scaled_PV = logits_PV / sampling.temperature_P[:, None]
        smallest_P = smallest_kept_logit(scaled_PV, sampling.top_k_P, sampling.top_p_P, sampling.min_p_P, used)
        logits_PV.masked_fill_(scaled_PV < smallest_P[:, None], -torch.inf)
    return logits_PV


def _penalize_repetition(logits_PV: Tensor, tokens_PS: Tensor, penalty_P1: Tensor) -> None:
    """A token that occurs several times is penalized once."""
    of_tokens_PS = logits_PV.gather(1, tokens_PS)
    penalized_PS = torch.where(of_tokens_PS < 0, of_tokens_PS * penalty_P1, of_tokens_PS / penalty_P1)
    logits_PV.scatter_(1, tokens_PS, penalized_PS)


def smallest_kept_logit(
    scaled_PV: Tensor, top_k_P: Tensor, top_p_P: Tensor, min_p_P: Tensor, used: UsedProcessors
) -> Tensor:
    """The smallest logit that top-k, top-p and min-p keep. Tokens as likely as the last kept one are kept too, since
    their order after sorting is arbitrary."""
    top_P = scaled_PV.amax(1)
    smallest_P = torch.where(min_p_P > 0, top_P + min_p_P.log(), -torch.inf).to(scaled_PV.dtype)
    if not used.max_top_k and not used.top_p:
        return smallest_P
    num_best = min(scaled_PV.shape[1], max(used.max_top_k, NUCLEUS_CANDIDATES if used.top_p else 0))
    best_PW = scaled_PV.topk(num_best).values
    kth_P = best_PW.gather(1, (top_k_P - 1).clamp(min=0)[:, None])[:, 0]
    kth_P = torch.where(top_k_P > 0, kth_P, -torch.inf)
    smallest_P = torch.maximum(smallest_P, kth_P)
    if used.top_p:
        smallest_P = torch.maximum(smallest_P, _nucleus(scaled_PV, best_PW, kth_P, top_p_P))
    return smallest_P


def _nucleus(scaled_PV: Tensor, best_PW: Tensor, kth_P: Tensor, top_p_P: Tensor) -> Tensor:
    """The smallest of the most likely logits that together reach the share `top_p` of what top-k keeps."""
    top_P1 = best_PW[:, :1]
    kept_PV = (scaled_PV - top_P1).exp_().masked_fill_(scaled_PV < kth_P[:, None], 0)
    target_P1 = (top_p_P * kept_PV.sum(1, dtype=torch.float64))[:, None]
    weight_PW = (best_PW - top_P1).double().exp_()
    count_P = (weight_PW.cumsum(1) - weight_PW < target_P1).sum(1)
    if best_PW.shape[1] < scaled_PV.shape[1]:
        is_short_P = (count_P == best_PW.shape[1]) & (top_p_P < 1) & (kth_P == -torch.inf)
        if is_short_P.any():
            return _nucleus(scaled_PV, scaled_PV.sort(1, descending=True).values, kth_P, top_p_P)
    smallest_P = best_PW.gather(1, (count_P - 1).clamp(min=0)[:, None])[:, 0]
    return torch.where(top_p_P < 1, smallest_P, -torch.inf)
