"""Learning rate schedules: functions of the step only, without state."""

import math
from collections.abc import Callable

from areal_like.config.sections.optimizer import OptimizerConfig

Schedule = Callable[[int], float]
"""Completed steps -> learning rate of the next one."""


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """Linear warm-up from the minimum to `lr`, then the schedule until the last step."""
    lowest = config.min_lr_ratio if config.min_lr is None else _min_ratio(config.min_lr, config.lr)
    warmup = config.warmup_steps
    if warmup is None:
        warmup = int(config.warmup_steps_proportion * total_steps)
    decay = config.decay_steps
    if decay is None:
        decay = int(config.decay_steps_proportion * total_steps)
    # The decay starts after warm-up at the earliest.
    decay = min(decay, total_steps - warmup)
    schedule = _SCHEDULES[config.lr_scheduler_type]

    def learning_rate(step: int) -> float:
        if step < warmup:
            return config.lr * (lowest + (1 - lowest) * step / warmup)
        share = schedule(step - warmup, max(1, total_steps - warmup), decay)
        return config.lr * (lowest + (1 - lowest) * share)

    return learning_rate


def _min_ratio(lowest: float, highest: float) -> float:
    return min(1.0, lowest / highest) if highest else 1.0


def _constant(step: int, steps: int, decay: int) -> float:
    return 1.0


def _linear(step: int, steps: int, decay: int) -> float:
    return max(0.0, 1 - step / steps)


def _cosine(step: int, steps: int, decay: int) -> float:
    return (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def _warmup_stable_decay(step: int, steps: int, decay: int) -> float:
    return min(1.0, max(0.0, (steps - step) / decay)) if decay > 0 else 1.0


_SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "warmup_stable_decay": _warmup_stable_decay,
}
"""By `lr_scheduler_type`: (steps after warm-up, their total, steps of the decay) -> share of the learning rate."""
