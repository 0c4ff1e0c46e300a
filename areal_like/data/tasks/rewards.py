"""Rewards of tasks with one exact answer: partial credit for nearly right ones, most of the reward for the exact
one."""

from areal_like.data.tasks.base import RewardValue

NEAR_SHARE, EXACT_SHARE = 0.3, 0.7


def score_by_position(completion: str, answer: str, part: str = "places") -> RewardValue:
    """A part for each correct character, the rest for the exact answer; extra characters count as wrong."""
    right = sum(actual == expected for actual, expected in zip(completion, answer, strict=False))
    return _partial_credit(part, right / max(len(answer), len(completion)), completion == answer)


def score_by_distance(completion: str, answer: str) -> RewardValue:
    """For numbers: a part that decreases with the distance, the rest for the exact number."""
    is_number = completion.isascii() and completion.isdigit() and len(completion) <= 4
    near = 1 / (1 + abs(int(completion) - int(answer))) if is_number else 0.0
    return _partial_credit("near", near, completion == answer)


def _partial_credit(part: str, near: float, is_exact: bool) -> RewardValue:
    return {part: NEAR_SHARE * near, "exact": EXACT_SHARE * is_exact, "score": float(is_exact)}
