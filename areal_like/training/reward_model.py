"""Training of a reward model: of two answers to a prompt the better one gets the higher score."""

from collections.abc import Sequence

from torch import Tensor

from areal_like.algorithms.losses import pairwise
from areal_like.training.engine import LossFunction
from areal_like.training.preference_pairs import chosen_and_rejected
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.supervised import Learner


class RewardModelLearner(Learner):
    """The model learns to score answers, of which pairs are given."""

    per_row = 2

    def units(self, batch: Sequences) -> int:
        return len(batch) // 2

    def step(self, batch: Sequences, completed: int) -> dict[str, float]:
        """What the scores were before the update is told too."""
        self._sums = {"accuracy": 0.0, "margin": 0.0}
        metrics = super().step(batch, completed)
        whole = self._world.sum(list(self._sums.values()))
        means = zip(self._sums, whole, strict=True)
        # The tokens that stand for scores are none of the text.
        metrics["train/tokens"] -= metrics.pop("train/loss_tokens")
        return {**metrics, **{f"train/{name}": value / self.units(batch) for name, value in means}}

    def loss(self, num_units: int) -> LossFunction:
        def loss(micro: MicroBatch, scores: Tensor, entropy: Tensor | None) -> Tensor:
            better, worse = chosen_and_rejected(micro)
            found = pairwise(scores[better], scores[worse])
            for name in self._sums:
                self._sums[name] += found.statistics.sums[name].item()
            return found.total / num_units

        return loss

    def measure(self, micros: Sequence[MicroBatch]) -> dict[str, float]:
        sums = {"loss": 0.0, "accuracy": 0.0, "margin": 0.0}
        for micro, scores in zip(micros, self.engine.values(micros), strict=True):
            better, worse = chosen_and_rejected(micro)
            found = pairwise(scores[better].double(), scores[worse].double())
            sums["loss"] += found.total.item()
            for name in ("accuracy", "margin"):
                sums[name] += found.statistics.sums[name].item()
        return sums
