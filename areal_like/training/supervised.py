"""Supervised fine-tuning: imitate the answers of a dataset."""

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms.losses import cross_entropy
from areal_like.data.packing import balance
from areal_like.process.body import DONE, STOPPED_EARLY
from areal_like.process.identity import Identity
from areal_like.process.run import Run
from areal_like.process.seeds import derive_seed
from areal_like.training.checkpoint import Checkpoints
from areal_like.training.engine import Engine
from areal_like.training.micro_batches import cut
from areal_like.training.progress import Progress
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.stop import StopRequest
from areal_like.training.supervised_data import SupervisedData
from areal_like.training.timers import Timer
from areal_like.training.world import World

log = logging.getLogger(__name__)


def train(run: Run, me: Identity, world: World, engine: Engine, data: SupervisedData, stop: StopRequest) -> int:
    """From where the attempt begins to the end of the run, or to where it is stopped. Returns the exit code."""
    start, total_steps, learner = run.start_point(), data.total_steps, Supervised(engine, run.config.seed)
    engine.set_schedule(total_steps)
    evaluator = Timer(run.config.evaluator, data.deal.steps_per_epoch)
    checkpoints = Checkpoints(run, world, data.deal.steps_per_epoch, {"evaluator": evaluator})
    progress = Progress(run, me, world)
    if start.checkpoint is not None:
        checkpoints.resume(start.checkpoint, engine, progress)
    log.info("training from step %d to %d on %d rows", start.step, total_steps, len(data.train))

    completed = start.step
    progress.watch.take()
    while completed < total_steps and not stop.was_asked_for():
        with progress.watch("train"):
            metrics = learner.step(data.train, data.deal.rows(completed), completed)
        completed += 1
        is_last = completed == total_steps
        if data.valid is not None and world.first([evaluator.is_due(completed) or is_last])[0]:
            with progress.watch("evaluate"):
                batch_size, most = run.config.valid_dataset.batch_size, run.config.evaluator.num_examples
                progress.evaluation(completed, learner.evaluate(data.valid, batch_size, most))
        progress.step(completed, {**metrics, "train/epoch": completed / data.deal.steps_per_epoch})
        if due := checkpoints.due(completed, is_last):
            with progress.watch("checkpoint"):
                checkpoints.write(completed, due, engine, progress)

    stopped_early = completed < total_steps
    if stopped_early and (due := checkpoints.due(completed, is_last=True)):
        checkpoints.write(completed, due, engine, progress)
    checkpoints.wait()
    return STOPPED_EARLY if stopped_early else DONE


class Supervised:
    """The model that learns answers."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self._seed, self._world = engine, seed, engine.world

    def step(self, sequences: Sequences, rows: NDArray[np.int64], completed: int) -> dict[str, float]:
        """One update on these rows, which the ranks share."""
        num_tokens = int(sequences.counts_N[rows].sum())

        def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            mask = torch.ones_like(logprobs, dtype=torch.bool)
            return cross_entropy(logprobs, mask).total / max(1, num_tokens)

        with self.engine.seeded(derive_seed(self._seed, "dropout", completed, self._world.rank)):
            part = self.engine.accumulate(self._micro_batches(sequences, rows), loss)
        update = self.engine.step(completed, part)
        return {
            "train/loss": update.loss,
            "train/grad_norm": update.grad_norm,
            "train/lr": update.lr,
            "train/skipped_updates": float(update.is_skipped),
            "train/samples": float(len(rows)),
            "train/tokens": float(sequences.lengths_N[rows].sum()),
            "train/loss_tokens": float(num_tokens),
        }

    def evaluate(self, sequences: Sequences, batch_size: int, most: int) -> dict[str, float]:
        """The mean loss of a token over held-out rows, `batch_size` of them at a time; of the first `most`, if that is
        not -1."""
        rows = np.arange(len(sequences) if most < 0 else min(most, len(sequences)))
        total = 0.0
        for start in range(0, len(rows), batch_size):
            micros = self._micro_batches(sequences, rows[start : start + batch_size])
            total -= sum(found.double().sum().item() for found in self.engine.logprobs(micros, temperature=1.0))
        num_tokens = max(1, int(sequences.counts_N[rows].sum()))
        return {"eval/loss": self._world.sum([total])[0] / num_tokens, "eval/samples": float(len(rows))}

    def _micro_batches(self, sequences: Sequences, rows: NDArray[np.int64]) -> list[MicroBatch]:
        """Of this rank's share: about as many tokens as the others have."""
        rows = rows[sequences.counts_N[rows] > 0]
        mine = balance(sequences.inputs_N[rows].tolist(), self._world.size)[self._world.rank]
        config = self.engine.config
        return cut(sequences, rows[mine], config.mb_spec, self.engine.where, self._world.device)
