"""What is kept of a sequence beside its tokens, for groups that ask for it: its text, where texts end answers, and the
likeliest tokens beside each one that was sampled."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from areal_like.serving.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.requests import GroupRequest
from areal_like.serving.stop_text import StopScanner, scan_tokens

log = logging.getLogger(__name__)


@dataclass
class OutputTracker:
    """`alternatives`: for each token so far the likeliest ones, the likeliest first."""

    reading: StopScanner | None
    num_alternatives: int
    alternatives: list[dict[int, float]] = field(default_factory=list)


def output_tracker(group: GroupRequest) -> OutputTracker | None:
    stop, number = group.sampling.stop, group.alternatives
    return OutputTracker(StopScanner(stop) if stop else None, number) if stop or number else None


def record_top_logprobs(
    logits_RV: Tensor, temperature_R: Tensor, followed: Sequence[tuple[int, OutputTracker]]
) -> None:
    """`followed` stands with its place in the batch; the logits are those that are sampled from."""
    whose = [(place, one) for place, one in followed if one.num_alternatives]
    if not whose:
        return
    places = torch.tensor([place for place, _ in whose], device=logits_RV.device)
    scaled = logits_RV.index_select(0, places).float() / temperature_R.index_select(0, places)[:, None]
    most = min(max(one.num_alternatives for _, one in whose), scaled.shape[1])
    best = torch.log_softmax(scaled, -1).topk(most)
    for (_, one), chances, tokens in zip(whose, best.values.tolist(), best.indices.tolist(), strict=True):
        kept = list(zip(tokens, chances, strict=True))[: one.num_alternatives]
        one.alternatives.append({token: chance for token, chance in kept if chance > -torch.inf})


def completed_stops(
    tokenizer: LazyTokenizer,
    followed: Sequence[tuple[int, OutputTracker]],
    tokens: Sequence[int],
    is_early: Sequence[bool],
) -> tuple[list[int], dict[int, str]]:
    """Places in the batch whose new token completes a text that ends the answer, and those whose text cannot be read,
    with the reason."""
    readings = [(place, one.reading) for place, one in followed if one.reading is not None]
    if not readings:
        return [], {}
    places = [place for place, _ in readings]
    new, may_end = [tokens[place] for place in places], [not is_early[place] for place in places]
    try:
        found = scan_tokens(tokenizer.read, [reading for _, reading in readings], new, may_end)
    except Exception as fault:  # the library raises nothing narrower, and does not say at which of them
        log.exception("texts that end answers")
        return [], dict.fromkeys(places, f"stop: the tokenizer cannot read the answer: {fault}")
    return [place for place, is_complete in zip(places, found, strict=True) if is_complete], {}
