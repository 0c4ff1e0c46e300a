"""Decides when a recurring action is due: every N steps, epochs or seconds, whichever comes first."""

import time
from collections.abc import Callable
from typing import Any

from areal_like.config.sections.checkpoints import FrequencyConfig


class IntervalTimer:
    """To be asked once after every completed step."""

    def __init__(
        self, config: FrequencyConfig, steps_per_epoch: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self.steps_per_epoch, self._now = config, steps_per_epoch, now
        self._last_step = self._last_epoch = 0
        self._last_time = now()

    def is_due(self, step: int) -> bool:
        """After `step` completed steps. An interval that is due restarts; the others continue."""
        config, due = self._config, False
        epoch = step // max(1, self.steps_per_epoch)
        if config.freq_epochs is not None and epoch - self._last_epoch >= config.freq_epochs:
            self._last_epoch, due = epoch, True
        if config.freq_steps is not None and step - self._last_step >= config.freq_steps:
            self._last_step, due = step, True
        if config.freq_secs is not None and self._now() - self._last_time >= config.freq_secs:
            self._last_time, due = self._now(), True
        return due

    def state(self) -> dict[str, Any]:
        return {
            "last_step": self._last_step,
            "last_epoch": self._last_epoch,
            "elapsed_s": self._now() - self._last_time,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._last_step, self._last_epoch = state["last_step"], state["last_epoch"]
        self._last_time = self._now() - state["elapsed_s"]
