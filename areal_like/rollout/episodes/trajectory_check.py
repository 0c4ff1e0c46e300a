"""Full check of the trajectories of a workflow (`rollout.check_trajectory_format`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from areal_like.rollout.trajectory import Trajectory

LOGPROB_TOLERANCE = 1e-3
"""Allowed excess of a log-probability over 0."""


def find_problem(
    trajectories: Sequence[Trajectory], num_tokens: int, sampling: dict[str, Any], may_train_observed: bool = False
) -> str | None:
    """The problem of the first invalid trajectory. `num_tokens` is the size of the tokenizer's vocabulary."""
    for index, trajectory in enumerate(trajectories):
        problem = trajectory.problem(may_train_observed) or _problem_of(trajectory, num_tokens, sampling)
        if problem is not None:
            return f"trajectory {index} of {len(trajectories)}, and {problem}"
    return None


def _problem_of(each: Trajectory, num_tokens: int, sampling: dict[str, Any]) -> str | None:
    generated, masked = each.versions >= 0, each.loss_mask != 0
    if not set(np.unique(each.loss_mask)) <= {0, 1}:
        return f"its `loss_mask` holds {sorted(set(each.loss_mask.tolist()))}; it is 0 or 1"
    if generated[0]:
        return "its first token is a generated one; it must begin with the prompt"
    if not masked.any():
        return "its `loss_mask` is 0 everywhere, so nothing is trained on"
    wrong = np.flatnonzero((each.token_ids < 0) | (each.token_ids >= num_tokens))
    if len(wrong):
        position = int(wrong[0])
        return f"token {position} is {each.token_ids[position]}; the tokenizer knows ids from 0 to {num_tokens - 1}"
    wrong = np.flatnonzero(masked & (each.logprobs > LOGPROB_TOLERANCE))
    if len(wrong):
        position = int(wrong[0])
        return f"the log-probability of token {position} is {each.logprobs[position]}; it cannot be above 0"
    wrong = np.flatnonzero(~masked & (each.logprobs != 0))
    if len(wrong):
        position = int(wrong[0])
        return f"token {position} is out of the loss but has log-probability {each.logprobs[position]} instead of 0"
    limit = sampling.get("max_tokens")
    if limit is not None and len(each.token_ids) > limit:
        return f"it has {len(each.token_ids)} tokens; gconfig.max_tokens is {limit}"
    return None
