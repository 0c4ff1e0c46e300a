"""Random tokens in place of data, to measure the trainer alone; nothing can be learned from them.

The same seed gives the same tokens on any number of ranks.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.sections.data import FakeDataConfig
from areal_like.process.seeds import derive_seed
from areal_like.training.batch import SAMPLER, VERSIONS, TrainingBatch
from areal_like.training.controller_client import StepLimits
from areal_like.training.engine import TrainEngine
from areal_like.training.sequences import Sequences
from areal_like.training.supervised_batch import DataLength, SupervisedBatch
from areal_like.training.world import World

KEY = "train_dataset.fake"
SAMPLER_SPREAD = 0.1
"""Standard deviation of the made-up log-probabilities around a uniform sampler's."""


class FakeController:
    """Replaces the controller client of one rank. There are no servers and no publications."""

    def __init__(self, config: Any, engine: TrainEngine) -> None:
        self._fake, self._world = _checked(config.train_dataset.fake, engine.world), engine.world
        self._seed, self._group_size = config.seed, max(2, config.gconfig.n_samples)
        self._pin_memory: bool = config.train_dataset.pin_memory
        self._vocab_size, steps = engine.vocab_size, total_steps(config)
        self.limits = StepLimits(steps, steps)

    def step_limits(self) -> StepLimits:
        return self.limits

    def batch(self, step: int, while_waiting: Callable[[], None] = lambda: None) -> TrainingBatch:
        """This rank's part, with random rewards; each group has two or more sequences, if there are that many, so that
        there are advantages."""
        size, length = self._fake.batch_size, self._fake.seq_len
        rows_A = np.arange(size)
        mine_N = rows_A[self._world.rank :: self._world.size]
        numbers_N = mine_N + step * size
        sequences = random_sequences(self._seed, numbers_N, length, self._vocab_size, self._pin_memory)
        noise = [_generator(self._seed, "sampler", int(row)).standard_normal(length) for row in numbers_N]
        logprobs = np.ravel(noise) * SAMPLER_SPREAD - math.log(self._vocab_size)
        sequences.fields[SAMPLER] = logprobs.astype(np.float32)
        sequences.fields[VERSIONS] = np.full(len(sequences.token_ids), step, dtype=np.int32)
        return TrainingBatch(
            step=step,
            rewards_A=_generator(self._seed, "rewards", step).standard_normal(size).astype(np.float32),
            groups_A=np.minimum(rows_A // self._group_size, max(0, size // self._group_size - 1)),
            generated_A=np.full(size, length - 1),
            has_reward_A=np.ones(size, dtype=bool),
            truncated_A=np.zeros(size, dtype=bool),
            loss_tokens_A=np.full(size, length - 1),
            oldest_version=step,
            mine_N=mine_N,
            sequences=sequences,
            num_tokens=size * length,
        )

    def done(self, step: int) -> list[str]:
        """Nothing is evaluated."""
        return []

    def state(self, step: int) -> bytes:
        """Empty: batches depend on the step only."""
        return b""

    def finished(self, step: int, early: bool) -> None:
        pass

    def close(self) -> None:
        pass


class FakeTokenDataset:
    """Unlimited rows; as many are evaluated as are in a batch."""

    def __init__(self, fake: FakeDataConfig, seed: int, vocab: int, pin_memory: bool) -> None:
        self.fake, self._seed, self._vocab, self._pin_memory = fake, seed, vocab, pin_memory

    def take(self, rows_R: NDArray[np.int64]) -> Sequences:
        return random_sequences(self._seed, rows_R, self.fake.seq_len, self._vocab, self._pin_memory)

    def batches(self, batch_size: int, most: int) -> Iterator[Sequences]:
        """The first `most` rows, unless -1."""
        rows = np.arange(self.fake.batch_size if most < 0 else min(most, self.fake.batch_size))
        return (self.take(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size))


class FakeSupervisedData:
    """Replaces the data of a supervised run."""

    def __init__(self, config: Any, engine: TrainEngine) -> None:
        fake, steps = _checked(config.train_dataset.fake, engine.world), total_steps(config)
        self._config, self.length = config, DataLength(steps * fake.batch_size, steps, steps)
        seed, pin_memory = derive_seed(config.seed, "train"), config.train_dataset.pin_memory
        self.train = FakeTokenDataset(fake, seed, engine.vocab_size, pin_memory)
        self.valid = fake_valid(config, engine.vocab_size)

    def __str__(self) -> str:
        return "random tokens"

    def batches(self, step: int) -> Iterator[SupervisedBatch]:
        """New rows in every step."""
        size = self.train.fake.batch_size
        for each in range(step, self.length.total_steps):
            yield SupervisedBatch(self.train.take(np.arange(size) + each * size), "", self.length)

    def evaluation(self) -> Iterator[Sequences]:
        assert self.valid is not None, "there is nothing to evaluate on"
        return self.valid.batches(self._config.valid_dataset.batch_size, self._config.evaluator.num_examples)

    def epochs(self, step: int, length: DataLength) -> float:
        return step / length.steps_per_epoch

    def state(self, step: int) -> dict[str, bytes]:
        """Rows depend on the step only."""
        return {}

    def resume(self, step: int, checkpoint: Path, starts_over: bool) -> None:
        pass


def fake_valid(config: Any, vocab: int) -> FakeTokenDataset | None:
    """Random tokens to evaluate on, if configured."""
    valid = config.valid_dataset
    if valid is None or valid.fake is None:
        return None
    return FakeTokenDataset(valid.fake, derive_seed(config.seed, "valid"), vocab, valid.pin_memory)


def random_sequences(seed: int, rows: NDArray[np.int64], length: int, vocab: int, pin_memory: bool = True) -> Sequences:
    """All tokens are in the loss but the first, which nothing predicts."""
    tokens = [_generator(seed, "tokens", int(row)).integers(0, vocab, length, dtype=np.int32) for row in rows]
    token_ids = np.concatenate(tokens) if tokens else np.zeros(0, np.int32)
    lengths_N = np.full(len(tokens), length, np.int64)
    return Sequences(token_ids, np.ones(len(token_ids), np.uint8), lengths_N, pin_memory=pin_memory)


def total_steps(config: Any) -> int:
    limits = [] if config.total_train_steps is None else [config.total_train_steps]
    if config.total_train_n_seqs is not None:
        limits.append(-(-config.total_train_n_seqs // config.train_dataset.fake.batch_size))
    if not limits:
        raise ConfigError([Problem("total_train_steps", f"is null, and random tokens ({KEY}) have no end; set it")])
    return int(min(limits))


def _checked(fake: FakeDataConfig, world: World) -> FakeDataConfig:
    if fake.batch_size < world.size:
        message = f"is {fake.batch_size} for {world.size} ranks; every rank needs at least one sequence"
        raise ConfigError([Problem(f"{KEY}.batch_size", message)])
    return fake


def _generator(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive_seed(seed, "fake", *names)))
