"""Training of a reward model: the chosen answer of a pair gets the higher score."""

from collections.abc import Sequence

from torch import Tensor

from areal_like.algorithms.losses import pairwise
from areal_like.training.device_sums import DeviceSums
from areal_like.training.engine import LossFunction
from areal_like.training.preference_pairs import chosen_and_rejected
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.supervised import Learner

MEASURED = ("accuracy", "margin")
"""Statistics of the loss that are reported."""


class RewardModelLearner(Learner):
    """Learns scores from pairs of answers."""

    per_row = 2

    def units(self, batch: Sequences) -> int:
        return len(batch) // 2

    def step(self, batch: Sequences, completed: int) -> dict[str, float]:
        """Also reports accuracy and margin before the update."""
        self.sums = DeviceSums()
        metrics = super().step(batch, completed)
        local = self.sums.read()
        means = zip(MEASURED, self._world.sum([local.get(name, 0.0) for name in MEASURED]), strict=True)
        # Placeholder tokens of scores are not part of the text.
        metrics["train/tokens"] -= metrics.pop("train/loss_tokens")
        return {**metrics, **{f"train/{name}": value / self.units(batch) for name, value in means}}

    def loss(self, num_units: int) -> LossFunction:
        def loss(micro: MicroBatch, scores: Tensor, entropy: Tensor | None) -> Tensor:
            chosen, rejected = chosen_and_rejected(micro)
            result = pairwise(scores[chosen], scores[rejected])
            self.sums.add({name: result.statistics.sums[name] for name in MEASURED})
            return result.total / num_units

        return loss

    def measure(self, micros: Sequence[MicroBatch]) -> dict[str, float]:
        sums = DeviceSums()
        for micro, scores in zip(micros, self.engine.values(micros), strict=True):
            chosen, rejected = chosen_and_rejected(micro)
            result = pairwise(scores[chosen].double(), scores[rejected].double())
            sums.add({"loss": result.total, **{name: result.statistics.sums[name] for name in MEASURED}})
        return {name: 0.0 for name in ("loss", *MEASURED)} | sums.read()
