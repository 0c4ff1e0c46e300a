"""Supervised training: fine-tuning on answers and reward models, without servers."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from areal_like.algorithms.losses import cross_entropy
from areal_like.algorithms.statistics import exact_sum
from areal_like.data.packing import balance
from areal_like.observe.milestones import write_total_steps
from areal_like.process.exit_codes import DONE, STOPPED_EARLY
from areal_like.process.identity import Identity
from areal_like.process.interval_timer import IntervalTimer
from areal_like.process.run import LEDGER, Run
from areal_like.process.seeds import derive_seed
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.device_sums import DeviceSums
from areal_like.training.engine import LossFunction, TrainEngine
from areal_like.training.fake_data import FakeSupervisedData, FakeTokenDataset
from areal_like.training.optimizer_step import optimizer_metrics
from areal_like.training.progress import TrainingProgress
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.stop import StopRequest
from areal_like.training.supervised_data import SupervisedData, TokenDataset
from areal_like.training.token_export import NO_EXPORT, NoTokenExport, TokenExport
from areal_like.training.world import World

log = logging.getLogger(__name__)


def train(
    run: Run,
    me: Identity,
    world: World,
    learner: "Learner",
    data: SupervisedData | FakeSupervisedData,
    stop: StopRequest,
) -> int:
    """From the attempt's first step to the end of the run, or until stopped. Returns the exit code."""
    start, total_steps, engines = run.start_point(), data.total_steps, {"model": learner.engine}
    learner.engine.set_schedule(total_steps)
    evaluator = IntervalTimer(run.config.evaluator, data.batch_sampler.steps_per_epoch)
    checkpoints = CheckpointManager(run, world, data.batch_sampler.steps_per_epoch, {"evaluator": evaluator})
    progress = TrainingProgress(run, me, world)
    checkpoints.resume(engines, progress)
    if start.checkpoint is not None:
        data.resume(start.step, start.checkpoint, run.skips("dataloader"))
    if world.is_first:
        write_total_steps(run.rollouts / LEDGER, total_steps, start.attempt)
    log.info("training from step %d to %d on %s", start.step, total_steps, data)

    completed = start.step
    progress.watch.take()
    while completed < total_steps and not stop.is_requested():
        with progress.watch("train"):
            metrics = learner.step(data.train.take(data.batch_sampler.rows(completed)), completed)
        completed += 1
        is_last = completed == total_steps
        if data.valid is not None and world.first([evaluator.is_due(completed) or is_last])[0]:
            with progress.watch("evaluate"):
                batch_size, most = run.config.valid_dataset.batch_size, run.config.evaluator.num_examples
                progress.evaluation(completed, learner.evaluate(data.valid, batch_size, most))
        progress.step(
            completed,
            {
                **metrics,
                "train/epoch": data.batch_sampler.batches_drawn(completed) / data.batch_sampler.steps_per_epoch,
            },
        )
        if due := checkpoints.due(completed, is_last):
            with progress.watch("checkpoint"):
                checkpoints.write(completed, due, engines, progress, {data.PART: data.state(completed)})

    stopped_early = completed < total_steps
    if stopped_early and (due := checkpoints.due(completed, is_last=True)):
        checkpoints.write(completed, due, engines, progress, {data.PART: data.state(completed)})
    checkpoints.wait()
    progress.close()
    return STOPPED_EARLY if stopped_early else DONE


class Learner(ABC):
    """A model and its objective, trained on batches of sequences that all ranks share."""

    per_row = 1
    """Sequences per row; they stay together."""

    def __init__(self, engine: TrainEngine, seed: int, export: TokenExport | NoTokenExport = NO_EXPORT) -> None:
        self.engine, self._seed, self._world, self._export = engine, seed, engine.world, export
        self.sums = DeviceSums()
        """What a step's losses add to."""

    @abstractmethod
    def units(self, batch: Sequences) -> int:
        """The divisor of a batch's loss."""

    @abstractmethod
    def loss(self, num_units: int) -> LossFunction:
        """The loss of a micro-batch of a batch with `num_units` units."""

    @abstractmethod
    def measure(self, micros: Sequence[MicroBatch]) -> dict[str, float]:
        """Evaluates without gradient: sums over units by the name of their mean. All ranks must call it."""

    def step(self, batch: Sequences, completed: int) -> dict[str, float]:
        """One optimizer step."""
        with self.engine.seeded(derive_seed(self._seed, "dropout", completed, self._world.rank)):
            part = self.engine.accumulate(self.micro_batches(batch), self.loss(max(1, self.units(batch))))
        self._export.write_rows(completed + 1, batch)
        update = self.engine.step(completed, part, self.sums)
        return {
            **optimizer_metrics("train", [update]),
            "train/samples": float(len(batch)),
            "train/tokens": float(batch.lengths_N.sum()),
            "train/loss_tokens": float(batch.loss_tokens_N.sum()),
        }

    def evaluate(self, held_out: TokenDataset | FakeTokenDataset, batch_size: int, most: int) -> dict[str, float]:
        """Means over held-out rows, `batch_size` at a time; over the first `most`, unless -1."""
        rows = np.arange(len(held_out) if most < 0 else min(most, len(held_out)))
        sums: dict[str, float] = {}
        num_units = 0
        for start in range(0, len(rows), batch_size):
            batch = held_out.take(rows[start : start + batch_size])
            num_units += self.units(batch)
            for name, value in self.measure(self.micro_batches(batch)).items():
                sums[name] = sums.get(name, 0.0) + value
        whole = self._world.sum(list(sums.values()))
        means = {f"eval/{name}": value / max(1, num_units) for name, value in zip(sums, whole, strict=True)}
        return {**means, "eval/samples": float(len(rows))}

    def micro_batches(self, batch: Sequences) -> list[MicroBatch]:
        """Micro-batches of this rank's share, with about the same number of tokens as other ranks; the sequences of a
        row stay together."""
        granularity = math.lcm(self.engine.config.mb_spec.granularity, self.per_row)
        shares = balance(batch.input_lengths_N.tolist(), self._world.size, granularity)
        mine = np.array(shares[self._world.rank], dtype=np.int64)
        mine = mine[batch.loss_tokens_N[mine] > 0]
        return self.engine.micro_batches(batch, mine, mine // granularity)


class SupervisedLearner(Learner):
    """Learns to write answers."""

    def units(self, batch: Sequences) -> int:
        return int(batch.loss_tokens_N.sum())

    def loss(self, num_units: int) -> LossFunction:
        def loss(micro: MicroBatch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
            self._export.add(micro, {"trainer_logprobs": logprobs})
            mask = torch.ones_like(logprobs, dtype=torch.bool)
            return cross_entropy(logprobs, mask).total / num_units

        return loss

    def measure(self, micros: Sequence[MicroBatch]) -> dict[str, float]:
        sums = DeviceSums()
        for logprobs in self.engine.logprobs(micros, temperature=1.0):
            sums.add({"loss": exact_sum(logprobs)})
        return {"loss": -sums.read().get("loss", 0.0)}
