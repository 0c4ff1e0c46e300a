"""Loss scaling for float16: losses are multiplied, so that small gradients are not rounded to 0, and gradients divided
again before they are used.

The factor is doubled after so many steps without an overflow, and halved when there was one. It is a power of two where
it begins as one, so that it changes nothing but the range.
"""

from typing import Any

from areal_like.config.sections.optimizer import OptimizerConfig

GROWTH, BACKOFF = 2.0, 0.5


class LossScale:
    """How large the factor is."""

    def __init__(self, initial: float, least: float, window: float, hysteresis: int) -> None:
        self.value = max(initial, least)
        self._least, self._window, self._hysteresis = least, window, hysteresis
        self._good, self._patience = 0, hysteresis

    def good(self) -> None:
        """After a step whose gradients were finite."""
        self._good += 1
        if self._good >= self._window:
            self._good, self._patience = 0, self._hysteresis
            self.value *= GROWTH

    def overflow(self) -> None:
        """After a step whose gradients were not. The first few are let pass, until a window without one has passed."""
        self._good = 0
        self._patience -= 1
        if self._patience <= 0:
            self.value = max(self.value * BACKOFF, self._least)

    @property
    def can_decrease(self) -> bool:
        """Whether an overflow can be the scale's fault: at its least it is the model's."""
        return self.value > self._least

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "good": self._good, "patience": self._patience}

    def restore(self, state: dict[str, Any]) -> None:
        self.value, self._good, self._patience = state["value"], state["good"], state["patience"]


class NoLossScale(LossScale):
    """For precisions that have the range of float32."""

    def __init__(self) -> None:
        super().__init__(1.0, 1.0, float("inf"), 1)


def make_scale(config: OptimizerConfig, *dtypes: str) -> LossScale:
    """`dtypes` are those in which gradients are computed and added up."""
    if "float16" not in dtypes:
        return NoLossScale()
    return LossScale(
        config.initial_loss_scale, config.min_loss_scale, config.loss_scale_window, max(1, config.hysteresis)
    )
