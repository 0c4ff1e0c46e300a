"""Splits a rank's sequences into minibatches (one update each), and these into micro-batches by `mb_spec`. Sequences
without tokens in the loss are left out."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.config.sections.actor import PPOActorConfig, PPOCriticConfig
from areal_like.config.sections.train_engine import TrainEngineConfig
from areal_like.data import packing
from areal_like.process.errors import Failure
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.world import World


def make_micro_batches(
    sequences: Sequences,
    rows: Sequence[int] | NDArray[np.int64],
    config: TrainEngineConfig,
    section: str,
    device: torch.device,
    units: NDArray[np.int64] | None = None,
) -> list[MicroBatch]:
    """Of these rows; none for no rows. `section` is the key of `config`, for messages. Rows of one unit stay together:
    by default `mb_spec.granularity` neighbouring rows are a unit."""
    rows_N, spec = np.asarray(rows, dtype=np.int64), config.mb_spec
    if not len(rows_N):
        return []
    try:
        plan = packing.micro_batches(
            sequences.input_lengths_N[rows_N].tolist(),
            n_mbs=spec.n_mbs,
            units=(rows_N // spec.granularity if units is None else units).tolist(),
            max_tokens=spec.token_limit,
            key=f"{section}.mb_spec.max_tokens_per_mb",
        )
    except ValueError as misfit:
        raise Failure(str(misfit)) from misfit
    pad_to = (spec.token_limit or 0) if config.pad_to_maximum else 0
    return [sequences.micro_batch(rows_N[part], device, pad_to) for part in plan]


def minibatches(
    sequences: Sequences, config: PPOActorConfig | PPOCriticConfig, world: World
) -> list[NDArray[np.int64]]:
    """Rows of one update each. All ranks return the same number; ranks with few sequences get empty ones."""
    plan = packing.minibatches(sequences.lengths_N.tolist(), config.ppo_n_minibatches, config.mb_spec.granularity)
    num_minibatches = int(world.max([len(plan)])[0])
    return [np.array(rows, dtype=np.int64) for rows in plan + [[]] * (num_minibatches - len(plan))]
