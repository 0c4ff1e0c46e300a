"""What a workflow gets to work with: tokens, answers from the server of its lease, rewards, trajectories."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from areal_like.config.checks.sampling import sampling_distribution
from areal_like.data.chat_template import Message
from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.seeds import derive_seed
from areal_like.rollout.episodes.generation_client import GenerationClient, LeaseRoute
from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.rewards.pool import RewardCounts
from areal_like.rollout.trajectory import Trajectory
from areal_like.serving.stop_text import finished_texts

SAMPLING = (
    *("temperature", "greedy", "max_new_tokens", "min_new_tokens", "max_tokens", "stop_token_ids", "stop"),
    *("top_p", "top_k", "min_p", "frequency_penalty", "repetition_penalty"),
)
"""What a workflow may say about one call, besides `n`."""

log = logging.getLogger(__name__)


class RowError(ValueError):
    """A row that nothing can be generated for."""


@dataclass(slots=True)
class Sample:
    """One answer. Its text is without what ended it: the stop text, or the token."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str
    text: str = ""

    @property
    def is_truncated(self) -> bool:
        return self.finish == "length"


class RewardSource(Protocol):
    """Where rewards come from: a RewardPool."""

    counts: RewardCounts

    async def measure(self, row: dict[str, Any], completions: Sequence[str]) -> list[Reward]: ...


@dataclass(frozen=True)
class WorkerTools:
    """What all engines of a worker share."""

    tokenizer: TextTokenizer
    client: GenerationClient
    rewards: RewardSource
    allow_mismatched_sampling: bool
    is_traced: bool


@dataclass
class Episode:
    """For one lease: one row, all of its samples."""

    tools: WorkerTools
    lease: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time of the lease went."""

    def __post_init__(self) -> None:
        self._route = LeaseRoute(self.lease["id"], self.lease["server"])
        self._num_calls = 0

    @property
    def n_samples(self) -> int:
        """So many trajectories the group should have."""
        return int(self.lease["n"])

    @property
    def is_evaluation(self) -> bool:
        return bool(self.lease["purpose"] == "eval")

    def encode(self, prompt: str | Sequence[Message], tools: Any = None) -> list[int]:
        """Token ids of a prompt: of a text with what the model wants around one; of messages by its chat template,
        which is also told of `tools`."""
        try:
            return self.tools.tokenizer.encode_prompt(prompt, tools)
        except ValueError as fault:
            raise RowError(str(fault)) from fault

    def decode(self, ids: Sequence[int]) -> str:
        return self.tools.tokenizer.decode(ids)

    async def generate(self, prompt_ids: Sequence[int], n: int | None = None, **sampling: Any) -> list[Sample]:
        """`n` answers (all of the group's unless said otherwise), sampled as the lease says; `sampling` may set
        max_new_tokens, max_tokens, stop_token_ids and stop, and in evaluations whatever else `gconfig` says of it."""
        how = self._how(sampling)
        if not len(prompt_ids):
            raise RowError("a prompt without a single token cannot be answered")
        if len(prompt_ids) >= how.get("max_tokens", len(prompt_ids) + 1):
            said = f"a prompt of {len(prompt_ids)} tokens leaves no room for an answer"
            raise RowError(f"{said}: gconfig.max_tokens is {how['max_tokens']}")
        number, self._num_calls = self._num_calls, self._num_calls + 1
        group = {
            "id": f"{self.lease['id']}/{number}",
            "prompt": list(prompt_ids),
            "n": self.n_samples if n is None else n,
            # The first call has the seed and the place in the order of the lease: a group of one call, as most are,
            # is then the same in every run.
            "seed": self.lease["seed"] if number == 0 else derive_seed(self.lease["seed"], "call", number),
            "sampling": how,
            "order": self.lease.get("order") if number == 0 else None,
            # An evaluation is short, and counts for the weights of its first tokens; of training, the next batch waits
            # for the oldest group.
            "priority": 0 if self.is_evaluation else 1 + int(self.lease["group"]),
        }
        self.trace("asks for %d answers to %d tokens", group["n"], len(prompt_ids))
        began = time.monotonic()
        answers = await self.tools.client.generate(self._route, group)
        self._count("generate_s", time.monotonic() - began)
        self.trace("has its answers, from %s", self._route.server)
        samples = [Sample(each["token_ids"], each["logprobs"], each["versions"], each["finish"]) for each in answers]
        stops = how.get("stop") or ()
        found = finished_texts(
            self.tools.tokenizer.decode_all,
            [(sample.token_ids, sample.finish) for sample in samples],
            [stops] if isinstance(stops, str) else stops,
        )
        for sample, ending in zip(samples, found, strict=True):
            sample.text = ending.text
        return samples

    async def score(self, row: dict[str, Any], samples: Sequence[Sample | str]) -> list[Reward]:
        """What each answer is worth, by `reward.name` or the task; RewardError where one cannot be had."""
        texts = [sample if isinstance(sample, str) else sample.text for sample in samples]
        self.trace("asks for %d rewards", len(texts))
        began = time.monotonic()
        rewards = await self.tools.rewards.measure(row, texts)
        self._count("reward_s", time.monotonic() - began)
        self.trace("has its rewards")
        return rewards

    def trajectory(
        self, prompt_ids: Sequence[int], sample: Sample, reward: Reward | float, **metrics: float
    ) -> Trajectory:
        """The prompt and one answer to it, as the trainer wants them; the loss is on the answer alone."""
        start, total = len(prompt_ids), len(prompt_ids) + len(sample.token_ids)
        token_ids, versions = np.empty(total, np.int32), np.full(total, -1, np.int32)
        loss_mask, logprobs = np.zeros(total, np.uint8), np.zeros(total, np.float32)
        token_ids[:start], token_ids[start:] = prompt_ids, sample.token_ids
        loss_mask[start:], logprobs[start:], versions[start:] = 1, sample.logprobs, sample.versions
        worth = reward if isinstance(reward, Reward) else Reward(float(reward))
        return Trajectory(
            token_ids, loss_mask, logprobs, versions, worth.value, worth.parts, sample.finish, metrics=metrics
        )

    def trace(self, text: str, *values: Any) -> None:
        """A line in the log, where rollout.enable_rollout_tracing asks for it."""
        if self.tools.is_traced:
            log.info("lease %s " + text, self.lease["id"], *values)

    def _how(self, sampling: dict[str, Any]) -> dict[str, Any]:
        unknown = next((name for name in sampling if name not in SAMPLING), None)
        if unknown is not None:
            raise TypeError(f"generate() takes no {unknown!r}; it takes n, {', '.join(SAMPLING)}")
        how = {**self.lease["sampling"], **sampling}
        if self.is_evaluation or self.tools.allow_mismatched_sampling:
            return how
        wanted, usual = sampling_distribution(how), sampling_distribution(self.lease["sampling"])
        other = next((name for name in sampling if name in usual and wanted[name] != usual[name]), None)
        if other is not None:
            raise ValueError(
                f"generate({other}={sampling[other]!r}) samples otherwise than gconfig.{other}, with which the trainer "
                "reckons: change that, or set rollout.allow_mismatched_sampling=true"
            )
        return how

    def _count(self, what: str, seconds: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds
