"""From logits to tokens. R rows, V tokens of the vocabulary."""

import torch

MAX_LOGITS_AT_ONCE = 1 << 25
"""Logits that are turned into a distribution in one go: the sums are in float64, eight bytes each."""


def sample_tokens(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, greedy_R: torch.Tensor, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row and its log-probability under the distribution it was taken from.

    A greedy row takes the likeliest token; its temperature should be 1, so that the log-probability is the model's.
    """
    rows = max(1, MAX_LOGITS_AT_ONCE // logits_RV.shape[1])
    parts = [
        _choose(
            logits_RV[at : at + rows],
            temperature_R[at : at + rows],
            greedy_R[at : at + rows],
            uniform_R[at : at + rows],
        )
        for at in range(0, len(logits_RV), rows)
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def _choose(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, greedy_R: torch.Tensor, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_RV = torch.log_softmax(logits_RV.float() / temperature_R[:, None], dim=-1)
    sums_RV = logprobs_RV.double().exp_().cumsum_(dim=-1)
    # The first token whose sum exceeds the mark: one of probability 0 is never taken, since it adds nothing.
    mark_R1 = (uniform_R * sums_RV[:, -1])[:, None]
    sampled_R = torch.searchsorted(sums_RV, mark_R1, right=True)[:, 0].clamp_(max=logits_RV.shape[1] - 1)
    tokens_R = torch.where(greedy_R, logprobs_RV.argmax(dim=-1), sampled_R)
    return tokens_R, logprobs_RV.gather(1, tokens_R[:, None])[:, 0]
