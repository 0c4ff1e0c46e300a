"""The batch of a step as one rank gets it from the controller."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from areal_like.training.sequences import Sequences, concatenate

SAMPLER, VERSIONS = "logprobs", "versions"
"""Fields that the controller sends per token."""
REFERENCE, VALUES = "reference", "values"
"""Fields of other models per token, where there are any: log-probabilities of the reference model, values of the
critic."""
ADVANTAGES, RETURNS, PROXIMAL = "advantages", "returns", "proximal"
"""Computed fields; `returns` only with values. PROXIMAL are the log-probabilities of the policy at the start of the
step, where a separate forward pass computes them."""


class AgentSamples(NamedTuple):
    """Which agent each sample is of, and what it shares with those of other agents. Numbered as in TrainingBatch."""

    prompts_A: NDArray[np.int64]
    """Groups, of all agents."""
    episodes_A: NDArray[np.int64]
    """Conversations, of all agents."""
    names_A: tuple[str, ...]
    """Empty where the policy plays a single one."""
    runs_A: NDArray[np.int64]
    """Which run of the agent in its conversation."""


@dataclass
class TrainingBatch:
    """Suffixes: _A all samples of the step over all ranks, in the same order on every rank; _N those of this rank."""

    step: int
    rewards_A: NDArray[np.float32]
    """0 where there is none."""
    has_reward_A: NDArray[np.bool_]
    groups_A: NDArray[np.int64]
    """What is compared, numbered from 0 in order of appearance: the samples of a group, or of one agent of it."""
    generated_A: NDArray[np.int64]
    truncated_A: NDArray[np.bool_]
    """Whose generation ended at the length limit."""
    loss_tokens_A: NDArray[np.int64]
    """As the workflow masked them."""
    oldest_version: int
    mine_N: NDArray[np.int64]
    """Indices of this rank's samples among all."""
    sequences: Sequences
    num_tokens: int
    """Of all samples, with prompts."""
    conversations_A: NDArray[np.int64] | None = None
    """The same number for all samples of one conversation, or of one agent of it. None: each sample is one."""
    agents: AgentSamples | None = None
    """None: no conversation has several agents, or several runs of one."""
    trains_observed: bool = False
    """Whether tokens that no model generated are in the loss of a sample."""

    @property
    def num_samples(self) -> int:
        return len(self.rewards_A)

    @property
    def prompts_A(self) -> NDArray[np.int64]:
        """The group of each sample, with those of all its agents."""
        return self.groups_A if self.agents is None else self.agents.prompts_A

    @cached_property
    def num_groups(self) -> int:
        return int(self.groups_A.max(initial=-1)) + 1


def read_batch(header: Mapping[str, Any], blobs: Sequence[memoryview], pin_memory: bool = True) -> TrainingBatch:
    """`blobs` are the groups of this rank's shard, packed by `areal_like.rollout.trajectory.pack_group`."""
    samples = header["samples"]
    shard = np.array(header["shard"], dtype=np.int64)
    groups = [load(bytes(blob)) for blob in blobs]
    sequences = concatenate(groups, (SAMPLER, VERSIONS), pin_memory) if groups else _no_sequences()
    if len(sequences) != len(shard):
        raise ValueError(f"batch {header['step']}: {len(shard)} samples came with arrays of {len(sequences)}")
    return TrainingBatch(
        step=header["step"],
        rewards_A=np.array([sample["reward"] or 0.0 for sample in samples], dtype=np.float32),
        has_reward_A=np.array([sample["reward"] is not None for sample in samples], dtype=bool),
        groups_A=_numbered([(sample["group"], sample.get("agent", "")) for sample in samples]),
        generated_A=np.array([sample["generated"] for sample in samples], dtype=np.int64),
        truncated_A=np.array([sample["finish"] == "length" for sample in samples], dtype=bool),
        loss_tokens_A=np.array([sample["loss_tokens"] for sample in samples], dtype=np.int64),
        oldest_version=min((sample["version_min"] for sample in samples), default=header["step"]),
        mine_N=shard,
        sequences=sequences,
        num_tokens=sum(sample["length"] for sample in samples),
        conversations_A=_conversations(samples),
        agents=_agents(samples),
        trains_observed=any(sample.get("observed_in_loss") for sample in samples),
    )


def _conversations(samples: Sequence[Mapping[str, Any]]) -> NDArray[np.int64] | None:
    named = [
        (sample["group"], sample.get("agent", ""), sample.get("conversation", index))
        for index, sample in enumerate(samples)
    ]
    return None if len(set(named)) == len(named) else _numbered(named)


def _agents(samples: Sequence[Mapping[str, Any]]) -> AgentSamples | None:
    if not any(sample.get("agent") or sample.get("run") for sample in samples):
        return None
    return AgentSamples(
        _numbered([sample["group"] for sample in samples]),
        _numbered([(sample["group"], sample.get("conversation", index)) for index, sample in enumerate(samples)]),
        tuple(sample.get("agent", "") for sample in samples),
        np.array([sample.get("run", 0) for sample in samples], dtype=np.int64),
    )


def _numbered(named: Sequence[Hashable]) -> NDArray[np.int64]:
    """In order of appearance."""
    number = {each: place for place, each in enumerate(dict.fromkeys(named))}
    return np.array([number[each] for each in named], dtype=np.int64)


def _no_sequences() -> Sequences:
    """A rank may get no part of a small batch."""
    empty = np.zeros(0, np.int32)
    return Sequences(empty, empty, np.zeros(0, np.int64), {SAMPLER: np.zeros(0, np.float32), VERSIONS: empty})
