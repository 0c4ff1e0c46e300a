"""Sequences cut into micro-batches as `mb_spec` says. Those without anything to learn stay out."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.config.micro_batch import MicroBatchSpec
from areal_like.data import packing
from areal_like.process.errors import Failure
from areal_like.training.sequences import MicroBatch, Sequences


def cut(
    sequences: Sequences,
    rows: Sequence[int] | NDArray[np.int64],
    spec: MicroBatchSpec,
    where: str,
    device: torch.device,
) -> list[MicroBatch]:
    """Of these rows; none where there are no rows."""
    rows_N = np.asarray(rows, dtype=np.int64)
    if not len(rows_N):
        return []
    try:
        plan = packing.micro_batches(
            sequences.inputs_N[rows_N].tolist(),
            n_mbs=spec.n_mbs,
            granularity=spec.granularity,
            max_tokens=spec.max_tokens_per_mb,
            key=f"{where}.mb_spec.max_tokens_per_mb",
        )
    except ValueError as misfit:
        raise Failure(str(misfit)) from misfit
    return [sequences.micro_batch(rows_N[part], device) for part in plan]
