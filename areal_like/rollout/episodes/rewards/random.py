"""The built-in reward `random`: 1 or 0 by chance, for a control run that has nothing to learn."""

import random
from typing import Any

from areal_like.config.argument_types import Share


class RandomReward:
    """1 with this probability. Each call draws anew: a reward that depended on the text could be learnt."""

    def __init__(self, probability: Share = 0.5) -> None:
        self._probability = probability
        self._random = random.SystemRandom()

    def __call__(self, prompt: Any, completion: str) -> float:
        return float(self._random.random() < self._probability)
