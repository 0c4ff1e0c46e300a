"""Samples of a training step for trackers, and the distributions of rewards and advantages."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.config.sections.trackers import LogExtras
from areal_like.data.sampled_text import SampledText
from areal_like.observe.tracker_samples import TRAIN, Extras, ExtrasWriter, enabled_extras, is_due
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.training.batch import ADVANTAGES, VERSIONS, TrainingBatch
from areal_like.training.world import World

MAX_SAMPLES = 8
"""Per group."""


class SampleLog:
    """Of one rank. `write` takes a batch after training on it; all ranks must call it, and the first one writes."""

    def __init__(self, run: Run, me: Identity, world: World) -> None:
        fake = run.config.train_dataset.fake is not None
        self._log_configs: list[LogExtras] = [] if fake else enabled_extras(run.config.stats_logger)
        self._world, self._seed = world, run.config.seed
        self._writer = ExtrasWriter(run, me)
        shows_text = world.is_first and any(each.samples for each in self._log_configs)
        self._text = SampledText(run.config.tokenizer_path, run.cwd) if shows_text else None

    def write(self, batch: TrainingBatch) -> None:
        completed = batch.step + 1
        due = [each for each in self._log_configs if is_due(each, completed)]
        if not due:
            return
        advantages_A = self._advantages(batch)
        if not self._world.is_first:
            return
        shown = self._choose(batch) if any(each.samples for each in due) else []
        samples = [self._describe(batch, row, tag, advantages_A) for tag, row in shown]
        self._writer.write(Extras(completed, TRAIN, samples, _distributions(batch, advantages_A)))

    def _advantages(self, batch: TrainingBatch) -> NDArray[np.float64]:
        """Of all samples over all ranks, each the mean over its tokens; nan without tokens in the loss."""
        sequences = batch.sequences
        sums_A, counts_A = np.zeros(batch.num_samples), np.zeros(batch.num_samples)
        if len(sequences):
            sums_A[batch.mine_N] = sequences.sums(sequences.fields[ADVANTAGES] * sequences.target_mask)
            counts_A[batch.mine_N] = sequences.loss_tokens_N
        together = np.array(self._world.sum([*sums_A, *counts_A]))
        sums_A, counts_A = together[: batch.num_samples], together[batch.num_samples :]
        means_A: NDArray[np.float64] = np.full(batch.num_samples, np.nan)
        return np.divide(sums_A, counts_A, out=means_A, where=counts_A > 0)

    def _choose(self, batch: TrainingBatch) -> list[tuple[str, int]]:
        """Tags and this rank's samples: the groups with the lowest and the highest reward, and a random one."""
        groups_N = batch.groups_A[batch.mine_N]
        rewards_N, has_reward_N = batch.rewards_A[batch.mine_N], batch.has_reward_A[batch.mine_N]
        groups, at_N = np.unique(groups_N, return_inverse=True)
        if not len(groups):
            return []
        means = np.bincount(at_N, rewards_N) / np.bincount(at_N, has_reward_N)
        order = np.argsort(means, kind="stable")
        chosen = {int(order[0]): "lowest reward", int(order[-1]): "highest reward"}
        rest = [index for index in range(len(groups)) if index not in chosen]
        if rest:
            generator = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "samples", batch.step)))
            chosen[rest[int(generator.integers(len(rest)))]] = "random"
        rows = {index: np.flatnonzero(at_N == index)[:MAX_SAMPLES] for index in chosen}
        return [(tag, int(row)) for index, tag in chosen.items() for row in rows[index]]

    def _describe(self, batch: TrainingBatch, row: int, tag: str, advantages_A: NDArray[np.float64]) -> dict[str, Any]:
        assert self._text is not None
        sequences, sample = batch.sequences, int(batch.mine_N[row])
        start = int(sequences.starts_N[row])
        span = slice(start, start + int(sequences.lengths_N[row]))
        ids, versions = sequences.token_ids[span], sequences.fields[VERSIONS][span]
        answer = int(np.argmax(versions >= 0))
        return {
            "step": batch.step + 1,
            "chosen for": tag,
            "group": int(batch.groups_A[sample]),
            "sample": sample,
            "prompt": self._text(ids[:answer].tolist()),
            "answer": self._text(ids[answer:].tolist()),
            "reward": float(batch.rewards_A[sample]) if batch.has_reward_A[sample] else None,
            "advantage": float(advantages_A[sample]),
            "prompt tokens": answer,
            "answer tokens": int(batch.generated_A[sample]),
            "truncated": bool(batch.truncated_A[sample]),
            "weights": int(versions.max()),
        }


def _distributions(batch: TrainingBatch, advantages_A: NDArray[np.float64]) -> dict[str, list[float]]:
    groups_A, has_reward_A = batch.groups_A, batch.has_reward_A
    return {
        "reward": batch.rewards_A[has_reward_A].tolist(),
        "advantage": advantages_A.tolist(),
        "group_reward": (np.bincount(groups_A, batch.rewards_A) / np.bincount(groups_A, has_reward_A)).tolist(),
        "answer_tokens": batch.generated_A.tolist(),
    }
