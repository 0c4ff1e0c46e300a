"""The built-in reward `random`: 1 or 0 by chance, for a control run that has nothing to learn."""

import random
from typing import Any

from areal_like.config.argument_types import Share


class RandomReward:
    """1 with this probability, whatever the text is: what depended on it could be learnt. Each answer has a draw of its
    own, which follows from the seed of the run, so that a resumed run has the same."""

    def __init__(self, probability: Share = 0.5) -> None:
        self._probability = probability

    def __call__(self, prompt: Any, completion: str, answer_seed: int) -> float:
        return float(random.Random(answer_seed).random() < self._probability)
