"""`rollout.check_trajectory_format`: what a workflow returns looked through, for who is writing one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from areal_like.rollout.trajectory import Trajectory

LOGPROB_TOLERANCE = 1e-3
"""A log-probability may be above 0 by so much."""


def find_problem(trajectories: Sequence[Trajectory], num_tokens: int, sampling: dict[str, Any]) -> str | None:
    """What is wrong with the first trajectory that is not as it should be, in words; `num_tokens` is how many tokens
    the tokenizer knows."""
    for index, trajectory in enumerate(trajectories):
        found = trajectory.complaint() or _of_one(trajectory, num_tokens, sampling)
        if found is not None:
            return f"trajectory {index} of {len(trajectories)}, and {found}"
    return None


def _of_one(each: Trajectory, num_tokens: int, sampling: dict[str, Any]) -> str | None:
    generated, masked = each.versions >= 0, each.loss_mask != 0
    if not set(np.unique(each.loss_mask)) <= {0, 1}:
        return f"its `loss_mask` holds {sorted(set(each.loss_mask.tolist()))}; it is 0 or 1"
    if generated[0]:
        return "its first token is a generated one; the prompt must stand before it"
    if not masked.any():
        return "its `loss_mask` is 0 everywhere, so nothing can be learnt from it"
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
