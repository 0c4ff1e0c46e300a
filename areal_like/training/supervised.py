"""Supervised training: fine-tuning on answers and reward models, without servers."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor

from areal_like.algorithms.losses import cross_entropy
from areal_like.algorithms.statistics import exact_sum
from areal_like.data.packing import balance
from areal_like.observe.milestones import write_corrected_steps, write_total_steps
from areal_like.observe.shown_samples import ShownSamples
from areal_like.process.errors import FinalFailure
from areal_like.process.exit_codes import DONE, STOPPED_EARLY
from areal_like.process.identity import Identity
from areal_like.process.interval_timer import IntervalTimer
from areal_like.process.ownership import Ownership
from areal_like.process.run import LEDGER, Run
from areal_like.process.seeds import derive_seed
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.device_sums import DeviceSums
from areal_like.training.engine import LossFunction, TrainEngine
from areal_like.training.fake_data import FakeSupervisedData
from areal_like.training.held_state import HeldState
from areal_like.training.optimizer_step import optimizer_metrics
from areal_like.training.progress import TrainingProgress
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.stop import StopRequest
from areal_like.training.supervised_batch import SupervisedBatch
from areal_like.training.supervised_data import SupervisedData
from areal_like.training.token_export import NO_EXPORT, NoTokenExport, TokenExport
from areal_like.training.world import World

EXACT_BITS = 64 - 53
"""A float has 53 bits of a hash."""

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
    start, engines = run.start_point(), {"model": learner.engine}
    evaluator = IntervalTimer(run.config.evaluator, data.length.steps_per_epoch)
    checkpoints = CheckpointManager(run, world, data.length.steps_per_epoch, {"evaluator": evaluator})
    progress = TrainingProgress(run, me, world)
    checkpoints.resume(engines, progress)
    if start.checkpoint is not None:
        data.resume(start.step, start.checkpoint, run.skips("dataloader"))
    length, ledger = data.length, run.rollouts / LEDGER

    def set_length() -> None:
        learner.engine.set_schedule(length.total_steps)
        checkpoints.set_epoch(length.steps_per_epoch)

    def parts(step: int) -> dict[str, bytes]:
        return data.state(step) if world.is_first else {}

    set_length()
    shown, ownership = ShownSamples(run), Ownership.of_process(run)
    if world.is_first:
        ownership.require()
        write_total_steps(ledger, length.total_steps, start.attempt)
    log.info("training from step %d to %d on %s", start.step, length.total_steps, data)

    completed, batches = start.step, data.batches(start.step)
    progress.watch.take()
    with HeldState(run, world, stop, checkpoints, engines, progress, parts) as held:
        while completed < length.total_steps and not stop.is_requested():
            held.begin(completed)
            with progress.watch("train"):
                batch = next(batches)
                _check_same_rows(world, batch)
                if batch.length != length:
                    log.info(
                        "%d of %d rows are left out: too long or invalid", length.rows - batch.length.rows, length.rows
                    )
                    length = batch.length
                    set_length()
                    if world.is_first:
                        ownership.require()
                        write_corrected_steps(ledger, length.rows, length.total_steps, start.attempt)
                metrics = learner.step(batch.sequences, completed)
            completed += 1
            held.measure()
            if world.is_first and shown.is_wanted and len(batch.sequences):
                shown.write(completed, *batch.sequences.first_split())
            is_last = completed == length.total_steps
            is_evaluated = data.valid is not None and bool(world.first([evaluator.is_due(completed) or is_last])[0])
            if is_evaluated:
                with progress.watch("evaluate"):
                    progress.evaluation(completed, learner.evaluate(data.evaluation()))
            held.end()
            progress.step(completed, {**metrics, "train/epoch": data.epochs(completed, length)})
            if due := checkpoints.due(completed, is_last, [""] if is_evaluated else []):
                with progress.watch("checkpoint"):
                    checkpoints.write(completed, due, engines, progress, parts(completed))

    stopped_early = completed < length.total_steps
    if stopped_early and (due := checkpoints.due(completed, is_last=True)):
        checkpoints.write(completed, due, engines, progress, parts(completed))
    checkpoints.wait()
    progress.close()
    return STOPPED_EARLY if stopped_early else DONE


def _check_same_rows(world: World, batch: SupervisedBatch) -> None:
    """All ranks read the rows by themselves."""
    digest = float(xxhash.xxh3_64_intdigest(f"{batch.digest} {batch.length}".encode()) >> EXACT_BITS)
    highest, lowest = world.max([digest, -digest])
    if highest != -lowest:
        raise FinalFailure(
            "train_dataset: the trainer ranks read different rows; all of them must read the same files, and a task "
            "must return the same rows each time"
        )


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

    def evaluate(self, held_out: Iterable[Sequences]) -> dict[str, float]:
        """Means over all rows of these batches."""
        sums: dict[str, float] = {}
        num_units = num_rows = 0
        for batch in held_out:
            num_units, num_rows = num_units + self.units(batch), num_rows + len(batch) // self.per_row
            for name, value in self.measure(self.micro_batches(batch)).items():
                sums[name] = sums.get(name, 0.0) + value
        whole = self._world.sum(list(sums.values()))
        means = {f"eval/{name}": value / max(1, num_units) for name, value in zip(sums, whole, strict=True)}
        return {**means, "eval/samples": float(num_rows)}

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
