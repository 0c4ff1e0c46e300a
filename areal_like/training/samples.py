"""Samples of a training step for trackers, and the distributions of rewards and advantages."""

from typing import Any, NamedTuple

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

MAX_ANSWERS = 8
"""Per group."""


class TrainedAnswers(NamedTuple):
    """Of all ranks. The samples of a conversation are one answer, or those of one agent of it. Suffixes: _A samples, as
    in TrainingBatch; _C answers, in order of appearance."""

    number_A: NDArray[np.int64]
    """The answer that a sample is of."""
    groups_C: NDArray[np.int64]
    rewards_C: NDArray[np.float64]
    """Of the first sample that has one, the mean over the runs of an agent; nan without."""
    advantages_C: NDArray[np.float64]
    """Mean over the tokens; nan without tokens in the loss."""
    tokens_C: NDArray[np.int64]
    truncated_C: NDArray[np.bool_]
    """Whether one of its samples is."""

    @property
    def group_means(self) -> NDArray[np.float64]:
        """Of the rewards of each group; nan without."""
        has_reward_C = ~np.isnan(self.rewards_C)
        return _means(self.groups_C, np.where(has_reward_C, self.rewards_C, 0.0), has_reward_C)


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
        answers = self._answers(batch)
        if not self._world.is_first:
            return
        shown = self._choose(batch, answers) if any(each.samples for each in due) else []
        samples = [self._describe(batch, answers, answer, tag) for tag, answer in shown]
        self._writer.write(Extras(completed, TRAIN, samples, _distributions(answers)))

    def _answers(self, batch: TrainingBatch) -> TrainedAnswers:
        """All ranks must call it."""
        sequences = batch.sequences
        sums_A, counts_A = np.zeros(batch.num_samples), np.zeros(batch.num_samples)
        if len(sequences):
            sums_A[batch.mine_N] = sequences.sums(sequences.fields[ADVANTAGES] * sequences.target_mask)
            counts_A[batch.mine_N] = sequences.loss_tokens_N
        together = np.array(self._world.sum([*sums_A, *counts_A]))
        sums_A, counts_A = together[: batch.num_samples], together[batch.num_samples :]
        number_A = np.arange(batch.num_samples) if batch.conversations_A is None else batch.conversations_A
        _, first_C = np.unique(number_A, return_index=True)
        runs_A = np.zeros_like(number_A) if batch.agents is None else batch.agents.runs_A
        rewarded = np.flatnonzero(batch.has_reward_A)
        _, first = np.unique(np.stack([number_A, runs_A])[:, rewarded], axis=1, return_index=True)
        counts_reward_A = np.isin(np.arange(batch.num_samples), rewarded[first])
        return TrainedAnswers(
            number_A,
            batch.groups_A[first_C],
            _means(number_A, np.where(counts_reward_A, batch.rewards_A, 0.0), counts_reward_A),
            _means(number_A, sums_A, counts_A),
            np.bincount(number_A, batch.generated_A).astype(np.int64),
            np.bincount(number_A, batch.truncated_A) > 0,
        )

    def _choose(self, batch: TrainingBatch, answers: TrainedAnswers) -> list[tuple[str, int]]:
        """Tags and this rank's answers: the groups with the lowest and the highest reward, and a random one. Those
        without a reward only if there are no others."""
        groups = np.unique(batch.groups_A[batch.mine_N])
        if not len(groups):
            return []
        has_mean = np.isfinite(answers.group_means[groups])
        groups = groups[has_mean] if has_mean.any() else groups
        order = np.argsort(answers.group_means[groups], kind="stable")
        chosen = {int(order[0]): "lowest reward", int(order[-1]): "highest reward"}
        rest = [index for index in range(len(groups)) if index not in chosen]
        if rest:
            generator = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "samples", batch.step)))
            chosen[rest[int(generator.integers(len(rest)))]] = "random"
        shown = {index: np.flatnonzero(answers.groups_C == groups[index])[:MAX_ANSWERS] for index in chosen}
        return [(tag, int(answer)) for index, tag in chosen.items() for answer in shown[index]]

    def _describe(self, batch: TrainingBatch, answers: TrainedAnswers, answer: int, tag: str) -> dict[str, Any]:
        """The prompt is that of its first sample; each sample begins a line of the text."""
        assert self._text is not None
        sequences, prompts, texts, newest = batch.sequences, [], [], []
        rows = np.flatnonzero(answers.number_A[batch.mine_N] == answer)
        for start, length in zip(sequences.starts_N[rows].tolist(), sequences.lengths_N[rows].tolist(), strict=True):
            span = slice(start, start + length)
            ids, versions = sequences.token_ids[span].tolist(), sequences.fields[VERSIONS][span]
            begin = int(np.argmax(versions >= 0))
            prompts.append(ids[:begin])
            texts.append(self._text(ids[begin:]))
            newest.append(int(versions.max()))
        reward, sample = float(answers.rewards_C[answer]), int(batch.mine_N[rows[0]])
        names_A = () if batch.agents is None else batch.agents.names_A
        return {
            "step": batch.step + 1,
            "chosen for": tag,
            "group": int(batch.prompts_A[sample]),
            **({"agent": names_A[sample]} if any(names_A) else {}),
            "sample": sample,
            "prompt": self._text(prompts[0]),
            "answer": "\n".join(texts),
            "reward": None if np.isnan(reward) else reward,
            "advantage": float(answers.advantages_C[answer]),
            "prompt tokens": len(prompts[0]),
            "answer tokens": int(answers.tokens_C[answer]),
            "truncated": bool(answers.truncated_C[answer]),
            "weights": max(newest),
        }


def _means(numbers: NDArray[np.int64], sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Of what has the same number; nan where nothing counts."""
    totals = np.bincount(numbers, counts)
    means = np.full(len(totals), np.nan)
    np.divide(np.bincount(numbers, sums), totals, out=means, where=totals > 0)
    return means


def _distributions(answers: TrainedAnswers) -> dict[str, list[float]]:
    return {
        "reward": answers.rewards_C[~np.isnan(answers.rewards_C)].tolist(),
        "advantage": answers.advantages_C.tolist(),
        "group_reward": answers.group_means.tolist(),
        "answer_tokens": answers.tokens_C.tolist(),
    }
