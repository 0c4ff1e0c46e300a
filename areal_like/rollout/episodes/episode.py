"""Episode: what a workflow uses to run one lease: tokens, generation, rewards and trajectories."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol

import numpy as np

from areal_like.config.checks.sampling import sampling_distribution
from areal_like.config.environments import place_of
from areal_like.data.chat_template import USER, Message
from areal_like.data.conversation_text import PlainText, TemplateText
from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.seeds import derive_seed
from areal_like.rollout.episodes.conversation import Conversation, ConversationRules
from areal_like.rollout.episodes.gateway.gateway import Gateway
from areal_like.rollout.episodes.gateway.session import AgentSession, SessionRules
from areal_like.rollout.episodes.generation_client import GenerationClient, GenerationError, LeaseRoute
from areal_like.rollout.episodes.phase_times import GENERATE, REWARD, PhaseTimes
from areal_like.rollout.episodes.rewards.base import Reward, RewardError
from areal_like.rollout.episodes.rewards.outcomes import RewardCounts
from areal_like.rollout.episodes.sample import RowError, Sample
from areal_like.rollout.episodes.text_environments.pool import EnvironmentPools
from areal_like.rollout.trajectory import Trajectory
from areal_like.serving.stop_text import finished_texts

SAMPLING = (
    *("temperature", "greedy", "max_new_tokens", "min_new_tokens", "max_tokens", "stop_token_ids", "stop"),
    *("top_p", "top_k", "min_p", "frequency_penalty", "repetition_penalty"),
)
"""Sampling parameters that a workflow may set for one call, besides `n`."""

current_sample: ContextVar[int | None] = ContextVar("current_sample", default=None)
"""The sample of `each_sample` that this task plays, or generates for."""

log = logging.getLogger(__name__)


P = ParamSpec("P")


class RewardSource(Protocol):
    """Gives rewards: a RewardPool."""

    counts: RewardCounts

    async def try_score(
        self, row: dict[str, Any], completions: Sequence[str], max_failed: int, seed: int
    ) -> list[Reward | None]: ...


class AnswerSource(Protocol):
    """Generates the answers to a prompt: a GenerationClient."""

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class WorkerTools:
    """What all episodes of a worker share."""

    tokenizer: TextTokenizer
    client: AnswerSource
    rewards: RewardSource
    allow_mismatched_sampling: bool
    is_traced: bool
    max_failed_share: float
    own_rewards: Mapping[str, RewardSource] = field(default_factory=dict)
    """Those of benchmarks and environments that have their own, by their place."""
    conversation_rules: ConversationRules = field(default_factory=ConversationRules)
    gateway: Gateway = field(default_factory=Gateway)
    keeps_messages: bool = False
    """Whether the messages of training conversations, and the texts of single answers, are kept for people to read;
    those of evaluations always are."""
    environments: EnvironmentPools = field(default_factory=EnvironmentPools)

    def counts(self) -> dict[str, int]:
        """Those of all rewards together, and those of the processes of environments."""
        every = [vars(each.counts) for each in (self.rewards, *self.own_rewards.values())]
        return {**{name: sum(counts[name] for counts in every) for name in every[0]}, **self.environments.counts}


@dataclass
class Episode:
    """One lease: a row and all its samples."""

    tools: WorkerTools
    lease: dict[str, Any]
    environment: str = ""
    """That of the row; empty where there are none."""
    times: PhaseTimes = field(default_factory=PhaseTimes)
    """A workflow counts what it waits for: `with episode.times.timed(TOOLS)`."""

    def __post_init__(self) -> None:
        self._route = LeaseRoute(self.lease["id"], self.lease["server"])
        self._num_calls = self._num_failed = self._num_conversations = 0
        self.has_place_left = self.lease.get("order") is not None
        """Whether its group has a place in a synchronous step, and has not had it."""
        self._num_played = self.n_samples
        """Answers of the group: more than `n_samples` where `each_of` plays more."""
        self._num_scorings: Counter[int | None] = Counter()
        """By sample."""

    @property
    def n_samples(self) -> int:
        """The number of trajectories that the group should have."""
        return int(self.lease["n"])

    @property
    def stop(self) -> list[str]:
        """The texts of `gconfig.stop`."""
        stops = self.lease["sampling"].get("stop") or []
        return [stops] if isinstance(stops, str) else list(stops)

    @property
    def is_evaluation(self) -> bool:
        return bool(self.lease["purpose"] == "eval")

    def encode(self, prompt: str | Sequence[Message], tools: Any = None) -> list[int]:
        """Token ids of a prompt: a text with its special tokens, or messages and `tools` by the chat template."""
        try:
            return self.tools.tokenizer.encode_prompt(prompt, tools)
        except ValueError as fault:
            raise RowError(str(fault)) from fault

    def decode(self, ids: Sequence[int]) -> str:
        return self.tools.tokenizer.decode(ids)

    async def generate(self, prompt_ids: Sequence[int], n: int | None = None, **sampling: Any) -> list[Sample]:
        """`n` answers (default: all of the group). `sampling` may set max_new_tokens, max_tokens, stop_token_ids and
        stop; in evaluations also all other sampling parameters."""
        return await self._generate(prompt_ids, self.n_samples if n is None else n, sampling, ("call", self._num_calls))

    def conversation(self, messages: str | Sequence[Message], tools: Any = None) -> Conversation:
        """A conversation that begins with these messages, or with a text where no chat template is used. `tools` are
        the descriptions of tools that the template shows to the model."""
        number, self._num_conversations = self._num_conversations, self._num_conversations + 1

        async def generate(prompt_ids: Sequence[int], turn: int, sampling: dict[str, Any]) -> Sample:
            return (await self._generate(prompt_ids, 1, sampling, ("conversation", number, turn)))[0]

        tokenizer, is_text = self.tools.tokenizer, isinstance(messages, str)
        return Conversation(
            number,
            [{"role": USER, "content": messages}] if isinstance(messages, str) else messages,
            PlainText(tokenizer) if is_text else TemplateText(tokenizer, tools),
            generate,
            lambda text: tokenizer.encode(text, special=False),
            self.lease["sampling"]["max_tokens"],
            self.tools.conversation_rules,
        )

    def agent_session(self, rules: SessionRules) -> AgentSession:
        """One sample of the group as the calls of a program, to be opened at the gateway."""
        number, self._num_conversations = self._num_conversations, self._num_conversations + 1
        tools, played = self.tools, current_sample.get()

        async def generate(
            prompt_ids: Sequence[int], n: int, sampling: dict[str, Any], stream: tuple[str | int, ...]
        ) -> list[Sample]:
            # The task of a request has the sample of whoever opened its connection, or of the first agent.
            current_sample.set(number if played is None else played)
            return await self._generate(prompt_ids, n, sampling, stream)

        return AgentSession(
            *(number, tools.tokenizer, generate, self.lease["sampling"], rules, tools.conversation_rules)
        )

    async def blame_server(self, session: AgentSession) -> None:
        """At the end of an agent's time: that a call is still open is no fault of the agent where the server hangs."""
        server, client = self._route.server, self.tools.client
        is_open = any(part.is_generating for part in session.parts)
        if is_open and isinstance(client, GenerationClient) and not await client.is_alive(server):
            session.failed(GenerationError(f"{server} does not answer, and a call is open"))

    async def each_sample(
        self,
        play: Callable[Concatenate["Episode", P], Awaitable[list[Trajectory] | None]],
        *args: P.args,
        **more: P.kwargs,
    ) -> list[Trajectory] | None:
        """`await play(episode, *args)` for each sample of the group, all at the same time: together what they return.
        None leaves a sample out."""
        return await self.each_of(self.n_samples, play, *args, **more)

    async def each_of(
        self,
        count: int,
        play: Callable[Concatenate["Episode", P], Awaitable[list[Trajectory] | None]],
        *args: P.args,
        **more: P.kwargs,
    ) -> list[Trajectory] | None:
        """The same for so many samples."""
        self._num_played = max(self._num_played, count)

        async def one(number: int) -> list[Trajectory] | SystemExit | None:
            current_sample.set(number)
            try:
                return await play(self, *args, **more)
            except SystemExit as fault:  # in a task of its own it would end the worker
                return fault

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if left := next((each for each in results if isinstance(each, SystemExit)), None):
            raise left
        return [each for result in results if isinstance(result, list) for each in result] or None

    async def _generate(
        self, prompt_ids: Sequence[int], n: int, sampling: dict[str, Any], stream: tuple[str | int, ...]
    ) -> list[Sample]:
        """`stream` names the random numbers."""
        params = self._sampling_params(sampling)
        if not len(prompt_ids):
            raise RowError("a prompt without a single token cannot be generated for")
        context = self.tools.conversation_rules.context_length
        limits = [(params.get("max_tokens"), "gconfig.max_tokens"), (context, "the context length of the servers")]
        limit, name = min(((each, name) for each, name in limits if each is not None), default=(None, ""))
        if limit is not None and len(prompt_ids) >= limit:
            message = f"a prompt of {len(prompt_ids)} tokens leaves no room for an answer"
            raise RowError(f"{message}: {name} is {limit}")
        number, self._num_calls = self._num_calls, self._num_calls + 1
        group = {
            "id": f"{self.lease['id']}/{number}",
            "prompt": list(prompt_ids),
            "n": n,
            # The first call has the seed and the slot of the lease, so that a group of one call, as most are, is the
            # same in every run.
            "seed": self.lease["seed"] if stream == ("call", 0) else derive_seed(self.lease["seed"], *stream),
            "sampling": params,
            "order": self.lease.get("order") if number == 0 else None,
            "priority": self.lease.get("priority", 0),
        }
        self.trace("requests %d answers to %d tokens", group["n"], len(prompt_ids))
        with self.times.timed(GENERATE):
            answers = await self.tools.client.generate(self._route, group)
        self.has_place_left &= number > 0
        self.trace("got its answers from %s", self._route.server)
        samples = [Sample(each["token_ids"], each["logprobs"], each["versions"], each["finish"]) for each in answers]
        stops = params.get("stop") or ()
        texts = finished_texts(
            self.tools.tokenizer.decode_all,
            [(sample.token_ids, sample.finish) for sample in samples],
            [stops] if isinstance(stops, str) else stops,
        )
        for sample, finished in zip(samples, texts, strict=True):
            sample.text, sample.stop_text = finished.text, finished.stop
        return samples

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by phase; with conversations also those in none."""
        return self.times.totals(with_other=self._num_conversations > 0)

    def max_failed(self, count: int) -> int:
        """How many of so many answers may be without a reward: in training `reward.max_failed_share` of them."""
        return 0 if self.is_evaluation else math.floor(round(self.tools.max_failed_share * count, 6))

    async def score(self, row: dict[str, Any], samples: Sequence[Sample | str]) -> list[Reward]:
        """The reward of each answer, by `reward.name` or the task. Raises RewardError if one fails."""
        return [reward for reward in await self._score(row, samples, max_failed=0) if reward is not None]

    async def try_score(self, row: dict[str, Any], samples: Sequence[Sample | str]) -> list[Reward | None]:
        """The same, but None where the reward fails. Raises RewardError if more fail than may in the group."""
        rewards = await self._score(row, samples, self.max_failed(self._num_played) - self._num_failed)
        self._num_failed += rewards.count(None)
        return rewards

    def count_failed(self, reason: str) -> None:
        """One answer without a reward. Raises RewardError if more have none than may in the group."""
        self._num_failed += 1
        if self._num_failed > self.max_failed(self._num_played):
            raise RewardError(reason)
        log.warning("a sample without a reward: %s", reason)

    def leave_out(self, fault: Exception) -> None:
        """One that failed before it had anything to train on, and is left out of the group. Raises the fault where that
        is one of the group: more failed than may, or all."""
        try:
            self.count_failed(str(fault))
        except RewardError:
            raise fault from None
        if self._num_failed >= self._num_played:
            raise fault

    async def _score(
        self, row: dict[str, Any], samples: Sequence[Sample | str], max_failed: int
    ) -> list[Reward | None]:
        texts = [sample if isinstance(sample, str) else sample.text for sample in samples]
        self.trace("requests %d rewards", len(texts))
        place = place_of(self.lease["split"], self.environment)
        source = self.tools.own_rewards.get(place, self.tools.rewards)
        with self.times.timed(REWARD):
            rewards = await source.try_score(row, texts, max_failed, self._reward_seed())
        self.trace("got its rewards")
        return rewards

    def _reward_seed(self) -> int:
        """Of what a reward draws by chance. Samples that are played at the same time have their own, whoever scores
        first."""
        sample = current_sample.get()
        number, self._num_scorings[sample] = self._num_scorings[sample], self._num_scorings[sample] + 1
        place = () if sample is None else ("sample", sample)
        return derive_seed(self.lease["seed"], "reward", *place, number)

    def trajectory(
        self, prompt_ids: Sequence[int], sample: Sample, reward: Reward | float | None, **metrics: float
    ) -> Trajectory:
        """The training sample of a prompt and one answer; only the answer is in the loss. Without a reward (None)
        nothing is, and the others of the group are not compared with it."""
        start, total = len(prompt_ids), len(prompt_ids) + len(sample.token_ids)
        token_ids, versions = np.empty(total, np.int32), np.full(total, -1, np.int32)
        loss_mask, logprobs = np.zeros(total, np.uint8), np.zeros(total, np.float32)
        token_ids[:start], token_ids[start:] = prompt_ids, sample.token_ids
        loss_mask[start:], logprobs[start:], versions[start:] = 1, sample.logprobs, sample.versions
        value, parts = (reward.value, reward.parts) if isinstance(reward, Reward) else (reward, {})
        arrays = token_ids, loss_mask, logprobs, versions
        return Trajectory(*arrays, value, parts, sample.finish, metrics=metrics, text=sample.text or None)

    def trace(self, text: str, *values: Any) -> None:
        """Logs a line if rollout.enable_rollout_tracing is set."""
        if self.tools.is_traced:
            log.info("lease %s " + text, self.lease["id"], *values)

    def _sampling_params(self, sampling: dict[str, Any]) -> dict[str, Any]:
        unknown = next((name for name in sampling if name not in SAMPLING), None)
        if unknown is not None:
            raise TypeError(f"generate() takes no {unknown!r}; it takes n, {', '.join(SAMPLING)}")
        params = {**self.lease["sampling"], **sampling}
        if self.is_evaluation or self.tools.allow_mismatched_sampling:
            return params
        actual, expected = sampling_distribution(params), sampling_distribution(self.lease["sampling"])
        other = next((name for name in sampling if name in expected and actual[name] != expected[name]), None)
        if other is not None:
            raise ValueError(
                f"generate({other}={sampling[other]!r}) differs from gconfig.{other}, which the trainer assumes: "
                "change that key, or set rollout.allow_mismatched_sampling=true"
            )
        return params
