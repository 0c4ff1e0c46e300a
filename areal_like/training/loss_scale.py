"""Loss scaling for float16: the loss is multiplied so that small gradients do not underflow, and gradients are divided
again before use.

The scale is doubled after a number of steps without overflow, and halved after one with. A power of two stays one, so
that scaling changes the range only.
"""

from typing import Any

from areal_like.config.sections.optimizer import OptimizerConfig

GROWTH, BACKOFF = 2.0, 0.5


class LossScale:
    """The current scale, and when it changes."""

    def __init__(self, initial: float, least: float, window: float, hysteresis: int) -> None:
        self.value = max(initial, least)
        self._least, self._window, self._hysteresis = least, window, hysteresis
        self._good, self._patience = 0, hysteresis

    def good(self) -> None:
        """After a step with finite gradients."""
        self._good += 1
        if self._good >= self._window:
            self._good, self._patience = 0, self._hysteresis
            self.value *= GROWTH

    def overflow(self) -> None:
        """After a step with gradients that are not finite. The first `hysteresis` - 1 of a window do not lower the
        scale."""
        self._good = 0
        self._patience -= 1
        if self._patience <= 0:
            self.value = max(self.value * BACKOFF, self._least)

    @property
    def can_decrease(self) -> bool:
        """Whether the scale may be the cause of an overflow: at its minimum it is the model."""
        return self.value > self._least

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "good": self._good, "patience": self._patience}

    def restore(self, state: dict[str, Any]) -> None:
        self.value, self._good, self._patience = state["value"], state["good"], state["patience"]


class NoLossScale(LossScale):
    """For dtypes with the range of float32."""

    def __init__(self) -> None:
        super().__init__(1.0, 1.0, float("inf"), 1)


def make_scale(config: OptimizerConfig, *dtypes: str) -> LossScale:
    """`dtypes` are those of computation and reduction of gradients."""
    if "float16" not in dtypes:
        return NoLossScale()
    return LossScale(
        config.initial_loss_scale, config.min_loss_scale, config.loss_scale_window, max(1, config.hysteresis)
    )
