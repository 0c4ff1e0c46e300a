"""What comes between the model's logits and the distribution that is sampled from, for rows that ask for it.

In this order, which is that of transformers: repetition and frequency penalties, end tokens that may not come yet,
temperature, top-k, top-p, min-p. P rows that ask for any of it, V tokens of the vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOGITS_AT_ONCE = 1 << 23
"""Logits that are changed in one go: several copies of them stand side by side."""
NUCLEUS_CANDIDATES = 1024
"""Likeliest tokens among which those of top-p are looked for first: sorting a whole vocabulary is slow."""


class SamplingTensors(NamedTuple):
    """What is asked for by the rows at `places` of a batch; `top_k` is 0 where it is no limit."""

    places_P: Tensor
    temperature_P: Tensor
    top_k_P: Tensor
    top_p_P: Tensor
    min_p_P: Tensor
    frequency_P: Tensor
    repetition_P: Tensor
    prompt_PS: Tensor
    """The different tokens of the prompt; what is filled up repeats one of them."""
    answer_PA: Tensor
    length_P: Tensor
    """So many tokens of `answer` are there."""
    blocked_PB: Tensor
    """Tokens that may not come; below 0 is none."""

    def part(self, begin: int, end: int) -> "SamplingTensors":
        return SamplingTensors(*(tensor[begin:end] for tensor in self))


def process_logits(logits_RV: Tensor, how: SamplingTensors) -> Tensor:
    """The logits in float32, changed where it is asked for; temperature is left for who samples."""
    logits_RV = logits_RV.float()
    at_once = max(1, MAX_LOGITS_AT_ONCE // logits_RV.shape[1])
    for begin in range(0, len(how.places_P), at_once):
        part = how.part(begin, begin + at_once)
        logits_RV.index_copy_(0, part.places_P, _shape(logits_RV.index_select(0, part.places_P), part))
    return logits_RV


def _shape(logits_PV: Tensor, how: SamplingTensors) -> Tensor:
    is_there_PA = torch.arange(how.answer_PA.shape[1], device=logits_PV.device) < how.length_P[:, None]
    if (how.repetition_P != 1).any():
        answer_PA = torch.where(is_there_PA, how.answer_PA, how.prompt_PS[:, :1])
        _repetition(logits_PV, torch.cat([how.prompt_PS, answer_PA], 1), how.repetition_P[:, None])
    if (how.frequency_P != 0).any():
        counts_PV = torch.zeros_like(logits_PV).scatter_add_(1, how.answer_PA, is_there_PA.float())
        logits_PV -= how.frequency_P[:, None] * counts_PV
    row, column = (how.blocked_PB >= 0).nonzero(as_tuple=True)
    logits_PV[row, how.blocked_PB[row, column]] = -torch.inf
    if ((how.top_k_P > 0) | (how.top_p_P < 1) | (how.min_p_P > 0)).any():
        scaled_PV = logits_PV / how.temperature_P[:, None]
        least_P = smallest_kept_logit(scaled_PV, how.top_k_P, how.top_p_P, how.min_p_P)
        logits_PV.masked_fill_(scaled_PV < least_P[:, None], -torch.inf)
    return logits_PV


def _repetition(logits_PV: Tensor, seen_PS: Tensor, penalty_P1: Tensor) -> None:
    """A token that is among those seen more than once is changed once."""
    found_PS = logits_PV.gather(1, seen_PS)
    logits_PV.scatter_(1, seen_PS, torch.where(found_PS < 0, found_PS * penalty_P1, found_PS / penalty_P1))


def smallest_kept_logit(scaled_PV: Tensor, top_k_P: Tensor, top_p_P: Tensor, min_p_P: Tensor) -> Tensor:
    """The smallest logit that stays in. Tokens as likely as the last one that stays do so too: which of them came first
    in sorting would be chance."""
    top_P = scaled_PV.amax(1)
    least_P = torch.where(min_p_P > 0, top_P + min_p_P.log(), -torch.inf).to(scaled_PV.dtype)
    is_nucleus_P = top_p_P < 1
    widest = int(top_k_P.max())
    if not widest and not is_nucleus_P.any():
        return least_P
    wanted = min(scaled_PV.shape[1], max(widest, NUCLEUS_CANDIDATES if is_nucleus_P.any() else 0))
    best_PW = scaled_PV.topk(wanted).values
    kth_P = best_PW.gather(1, (top_k_P - 1).clamp(min=0)[:, None])[:, 0]
    kth_P = torch.where(top_k_P > 0, kth_P, -torch.inf)
    least_P = torch.maximum(least_P, kth_P)
    if is_nucleus_P.any():
        least_P = torch.maximum(least_P, _nucleus(scaled_PV, best_PW, kth_P, top_p_P))
    return least_P


def _nucleus(scaled_PV: Tensor, best_PW: Tensor, kth_P: Tensor, top_p_P: Tensor) -> Tensor:
    """The smallest of the likeliest logits that together reach their share of what top-k leaves in."""
    top_P1 = best_PW[:, :1]
    left_in_PV = (scaled_PV - top_P1).exp_().masked_fill_(scaled_PV < kth_P[:, None], 0)
    wanted_P1 = (top_p_P * left_in_PV.sum(1, dtype=torch.float64))[:, None]
    chance_PW = (best_PW - top_P1).double().exp_()
    count_P = (chance_PW.cumsum(1) - chance_PW < wanted_P1).sum(1)
    if best_PW.shape[1] < scaled_PV.shape[1]:
        is_short_P = (count_P == best_PW.shape[1]) & (top_p_P < 1) & (kth_P == -torch.inf)
        if is_short_P.any():
            return _nucleus(scaled_PV, scaled_PV.sort(1, descending=True).values, kth_P, top_p_P)
    least_P = best_PW.gather(1, (count_P - 1).clamp(min=0)[:, None])[:, 0]
    return torch.where(top_p_P < 1, least_P, -torch.inf)
