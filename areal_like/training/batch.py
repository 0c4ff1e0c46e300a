"""A batch as the controller hands it to one rank: the small facts of all samples, and the arrays of this rank's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from areal_like.training.sequences import Sequences, concatenate

SAMPLER, VERSIONS = "logprobs", "versions"
"""What the controller sends of each token."""
REFERENCE, VALUES = "reference", "values"
"""What other models say of it, where there are any: log-probabilities of the reference model, values of a critic."""
ADVANTAGES, RETURNS, PROXIMAL = "advantages", "returns", "proximal"
"""What is made of these; `returns` only beside values. PROXIMAL are the log-probabilities of the policy before the
step, where they are computed by themselves."""


@dataclass
class TrainingBatch:
    """Suffixes: _A all samples of the step over all ranks, in one order on every rank; _N those of this rank."""

    step: int
    rewards_A: NDArray[np.float32]
    groups_A: NDArray[np.int64]
    """Numbered from 0 in the order in which they come."""
    generated_A: NDArray[np.int64]
    truncated_A: NDArray[np.bool_]
    """Whose generation ended for its length."""
    oldest_version: int
    mine_N: NDArray[np.int64]
    """Where this rank's samples stand among all."""
    sequences: Sequences
    num_tokens: int
    """Of all samples, prompts included."""

    @property
    def num_samples(self) -> int:
        return len(self.rewards_A)

    @cached_property
    def num_groups(self) -> int:
        return int(self.groups_A.max(initial=-1)) + 1


def read_batch(header: Mapping[str, Any], blobs: Sequence[memoryview]) -> TrainingBatch:
    """`blobs` are the groups of this rank's shard, as `areal_like.rollout.trajectory.pack_group` made them."""
    samples = header["samples"]
    _, groups_A = np.unique([sample["group"] for sample in samples], return_inverse=True)
    shard = np.array(header["shard"], dtype=np.int64)
    sequences = concatenate([load(bytes(blob)) for blob in blobs], (SAMPLER, VERSIONS)) if blobs else _no_sequences()
    if len(sequences) != len(shard):
        raise ValueError(f"batch {header['step']}: {len(shard)} samples came with arrays of {len(sequences)}")
    return TrainingBatch(
        step=header["step"],
        rewards_A=np.array([sample["reward"] for sample in samples], dtype=np.float32),
        groups_A=groups_A,
        generated_A=np.array([sample["generated"] for sample in samples], dtype=np.int64),
        truncated_A=np.array([sample["finish"] == "length" for sample in samples], dtype=bool),
        oldest_version=min((sample["version_min"] for sample in samples), default=header["step"]),
        mine_N=shard,
        sequences=sequences,
        num_tokens=sum(sample["length"] for sample in samples),
    )


def _no_sequences() -> Sequences:
    """A rank may get nothing of a small batch."""
    empty = np.zeros(0, np.int32)
    return Sequences(empty, empty, np.zeros(0, np.int64), {SAMPLER: np.zeros(0, np.float32), VERSIONS: empty})
