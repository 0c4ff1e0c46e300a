"""AgentSession: one episode of an agent at the gateway, its calls and its reward."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

from areal_like.config.sections.agent import AgentConfig
from areal_like.data.chat_template import Message
from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.errors import HttpError
from areal_like.rollout.episodes.conversation import BRANCHING, ConversationRules
from areal_like.rollout.episodes.gateway.answer_delivery import PendingAnswers
from areal_like.rollout.episodes.gateway.call_sampling import GCONFIG, CallSampling
from areal_like.rollout.episodes.gateway.call_tree import AgentCall, CallPrompt, CallTree, PromptDraft
from areal_like.rollout.episodes.gateway.chat_messages import read_answer
from areal_like.rollout.episodes.rewards.base import MAX_REWARD, Reward
from areal_like.rollout.episodes.sample import RowError, Sample
from areal_like.rollout.episodes.tools.call_format import CallFormat
from areal_like.rollout.trajectory import TEMPLATE_BREAKS, TURNS, Trajectory, prompt_hash
from areal_like.serving.client_filter import ModelLimits

AgentGenerator = Callable[[Sequence[int], int, dict[str, Any], tuple[str | int, ...]], Awaitable[list[Sample]]]
"""(prompt ids, number of answers, sampling, name of the random numbers) -> answers."""


CONTEXT_EXCEEDED = "context_length_exceeded"
"""Begins the refusal of a prompt that is too long; agents know it as the code of OpenAI's error."""
SHORT_TEXT = 10_000
"""Characters that are tokenized at once, in some hundredths of a second."""


@dataclass(frozen=True)
class SessionRules:
    """Of all agents of a worker."""

    sampling: str = GCONFIG
    max_calls: int | None = None
    turn_discount: float | None = None
    """With a number, each call is a sample of its own."""
    call_format: CallFormat = field(default_factory=CallFormat)
    has_runs: bool = False
    """Whether calls may say which run of an agent they are of: an environment's do, an agent's own program does not."""
    warned: set[str] = field(default_factory=set)
    """What was logged, each once."""

    @classmethod
    def configured(cls, agent: AgentConfig) -> Self:
        call_format = CallFormat(agent.call_start, agent.call_end, agent.call_format)
        return cls(agent.sampling, agent.max_calls, agent.turn_discount, call_format)


class AgentSession:
    """Generates for the calls of an agent, and keeps them as ids. Prompts that continue an earlier call extend its
    sequence."""

    def __init__(
        self,
        number: int,
        tokenizer: TextTokenizer,
        generator: AgentGenerator,
        sampling: Mapping[str, Any],
        rules: SessionRules,
        conversation_rules: ConversationRules,
        whole: "AgentSession | None" = None,
    ) -> None:
        """`number` is its place among the samples of the group. `whole`: the episode, of which this is one run."""
        self.number, self.tokenizer, self.rules = number, tokenizer, rules
        self.context_length = min(sampling["max_tokens"], conversation_rules.context_length or sampling["max_tokens"])
        self._sampling = sampling
        self.sampling = CallSampling(sampling, rules.sampling, rules.warned)
        self.tree, self.pending = CallTree(tokenizer), PendingAnswers()
        self.conversations: dict[str, list[Message]] = {}
        """Id of an answer -> the messages up to it, for requests that name it as the one before."""
        self.posted: float | None = None
        self.runs: dict[str, AgentSession] = {}
        """Of an environment whose agents run apart: the calls of each run, by its name."""
        self.refusal = ""
        """Why its last call was refused."""
        self.lacks_room = False
        """Whether the context had no room for what it has asked to be generated last."""
        self._generator, self._rules = generator, conversation_rules
        self._whole = whole or self
        self._num_calls = self._num_answers = 0
        self._faults: list[tuple[str, Exception]] = []
        self._num_open = 0
        """Failures of servers that no later call has made good, each with the name of its prompt."""
        self._repeats: dict[str, int] = {}

    def run(self, name: str) -> "AgentSession":
        """The part of the episode that a run of this name is; the whole without one."""
        if not name or not self.rules.has_runs:
            return self
        if name not in self.runs:
            self.runs[name] = AgentSession(
                self.number, self.tokenizer, self._generator, self._sampling, self.rules, self._rules, whole=self
            )
        return self.runs[name]

    @property
    def parts(self) -> list["AgentSession"]:
        return [self, *self.runs.values()]

    @property
    def is_generating(self) -> bool:
        return self._num_open > 0

    def failed(self, fault: Exception) -> None:
        """Of a server, whatever becomes of its call."""
        self._faults.append(("", fault))

    @property
    def fault(self) -> Exception | None:
        """The first failure of a server, which is none of the agent, if no call of the same prompt was answered after
        it: what the agent did without that answer is not what the policy would have got."""
        return self._faults[0][1] if self._faults else None

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(self.tokenizer.size, self.context_length)

    @property
    def last_answer(self) -> Sample | None:
        """Of those that the agent got."""
        calls = self.tree.delivered()
        return calls[-1].sample if calls else None

    @property
    def posted_reward(self) -> float | None:
        """Of the episode. 0 where only calls have got rewards, None where nothing was posted."""
        if self.posted is None and any(call.reward is not None for call in self.tree.calls):
            return 0.0
        return self.posted

    def refused(self, reason: str, generates: bool) -> None:
        """`generates`: a call for an answer. Agents also measure prompts, so as to shorten those without room."""
        self.refusal = reason
        self.lacks_room |= generates and reason.startswith(CONTEXT_EXCEEDED)

    async def chat_prompt(self, messages: list[Message], tools: Any) -> CallPrompt:
        """Raises HttpError where there is no template, it cannot show them, or they are too long."""
        return await self._prompt(lambda: self.tree.chat_prompt(messages, tools))

    async def text_prompt(self, text: str) -> CallPrompt:
        return await self._prompt(lambda: self.tree.text_prompt(text))

    async def unopened_ids(self, messages: list[Message], tools: Any) -> list[int]:
        """Of messages without the beginning of an answer, for programs that compare them with prompts."""
        try:
            text = self.tokenizer.chat.render(messages, add_generation_prompt=False, tools=tools or None)
        except ValueError as fault:
            raise HttpError(400, str(fault)) from fault
        return await self.encode(text, special=False)

    async def encode(self, text: str, special: bool, room: int | None = None) -> list[int]:
        """Raises HttpError for a text that is longer than so many tokens can be. Long texts take seconds, and the other
        episodes of the worker go on meanwhile."""
        room = self.context_length if room is None else room
        if len(text) > max(0, room) * self.tokenizer.longest_token:
            message = f"a text of {len(text)} characters {no_room(self.context_length)}"
            raise HttpError(400, f"{CONTEXT_EXCEEDED}: {message}")
        try:
            if len(text) > SHORT_TEXT:
                return await asyncio.to_thread(self.tokenizer.encode, text, special)
            return self.tokenizer.encode(text, special)
        except ValueError as fault:
            raise HttpError(400, str(fault)) from fault

    async def _prompt(self, draft: Callable[[], PromptDraft]) -> CallPrompt:
        try:
            drafted = draft()
        except ValueError as fault:
            raise HttpError(400, str(fault)) from fault
        if not drafted.rest:
            return drafted.begun
        room = self.context_length - len(drafted.begun.ids)
        return drafted.completed(await self.encode(drafted.rest, drafted.special, room))

    async def generate(
        self, prompt: CallPrompt, n: int, sampling: dict[str, Any], tools: Sequence[dict[str, Any]] = ()
    ) -> list[AgentCall]:
        """Raises HttpError."""
        most, whole = self.rules.max_calls, self._whole
        if most is not None and whole._num_calls >= most:
            raise HttpError(400, f"agent.max_calls: an episode has at most {most} calls")
        whole._num_calls += 1
        if len(prompt.ids) >= self.context_length:
            message = f"the prompt has {len(prompt.ids)} tokens and {no_room(self.context_length)}"
            raise HttpError(400, f"{CONTEXT_EXCEEDED}: {message}")
        name = prompt_hash(prompt.ids)
        repeat = whole._repeats[name] = whole._repeats.get(name, -1) + 1
        repeated = [each for each in self._faults if each[0] == name]
        self._num_open += 1
        try:
            samples = await self._generator(prompt.ids, n, sampling, ("agent", self.number, name, repeat))
        except (RowError, TypeError, ValueError) as misfit:
            raise HttpError(400, str(misfit)) from misfit
        except Exception as fault:
            if not repeated:
                self._faults.append((name, fault))
            raise HttpError(502, f"no answer was generated: {fault}") from fault
        finally:
            self._num_open -= 1
        if answered := next((each for each in repeated if each in self._faults), None):
            self._faults.remove(answered)
        calls = [self._call(prompt, sample, tools) for sample in samples]
        self.tree.calls += calls
        self.lacks_room = False
        return calls

    def _call(self, prompt: CallPrompt, sample: Sample, tools: Sequence[dict[str, Any]]) -> AgentCall:
        number, self._num_answers = self._num_answers, self._num_answers + 1
        ids = sample.token_ids
        raw, text = self.tokenizer.decode_all([ids[:-1] if sample.ends_by_token else ids, ids], skip_special=False)
        answer = read_answer(sample.text, raw, number, self.rules.call_format, tools)
        counts = (answer.num_calls, answer.num_errors)
        return AgentCall(f"call-{number}", prompt, sample, answer.reply, answer.written, text, *counts)

    def post_reward(self, value: Any, call_id: str | None) -> None:
        """Of the episode, or of one call. Raises HttpError."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or abs(value) > MAX_REWARD:
            raise HttpError(400, f"reward: {value!r:.80} is not a finite number")
        if call_id is None:
            self.posted = float(value)
            return
        if self.rules.turn_discount is None:
            raise HttpError(400, "id: calls have rewards of their own only with agent.turn_discount")
        call = next((call for call in self.tree.delivered() if call.id == call_id), None)
        if call is None:
            raise HttpError(404, f"id: no answer of this episode is {call_id!r:.80}")
        call.reward = float(value)

    async def close(self) -> None:
        """Ends what is still generated."""
        for session in self.parts:
            await session.pending.close()

    def trajectory(self, reward: Reward | float | None, **metrics: float) -> list[Trajectory]:
        """The training samples of the answers that the agent got; what it did not get is not trained on."""
        calls = self.tree.delivered()
        trains_observed, discount = not self._rules.mask_env_responses, self.rules.turn_discount
        if discount is not None or self._rules.trajectory_strategy == BRANCHING:
            records = self.tree.single_records(trains_observed)
        else:
            records = self.tree.records(trains_observed)
        breaks = {id(call.prompt) for call in calls if call.prompt.is_break}
        numbers = {
            **{TURNS: float(len(calls)), TEMPLATE_BREAKS: float(len(breaks)), "sequences": float(len(records))},
            "tool_calls": float(sum(call.num_tool_calls for call in calls)),
            "tool_errors": float(sum(call.num_tool_errors for call in calls)),
            "undelivered_calls": float(self._num_undelivered()),
            **metrics,
        }
        rewards: Sequence[Reward | float | None] = [reward] * len(records)
        if discount is not None and reward is not None:
            final, parts = (reward.value, reward.parts) if isinstance(reward, Reward) else (reward, {})
            rewards = [Reward(value, parts) for value in _discounted_calls(calls, final, discount)]
        pairs = zip(records, rewards, strict=True)
        ended = calls[-1] if calls and self.lacks_room else None
        return [
            _described(record.trajectory(each, self.number, numbers), last, is_cut_off=last is ended)
            for (record, last), each in pairs
        ]

    def _num_undelivered(self) -> int:
        """Answers that no client got: its connection was cut, or the agent ended before."""
        return len(self.tree.calls) - len(self.tree.delivered()) + self.pending.num_unfinished


def no_room(context_length: int) -> str:
    return f"leaves no room in the context length of {context_length} tokens"


def _discounted_calls(calls: Sequence[AgentCall], final: float, discount: float) -> list[float]:
    """The value of each answer. Several choices of one call are not before each other: each has what follows the call,
    and the call before them the mean of theirs."""
    values: list[float] = []
    following = final
    for _, choices in groupby(reversed(calls), key=lambda call: id(call.prompt)):
        values_C = [(call.reward or 0.0) + following for call in choices]
        values += values_C
        following = discount * sum(values_C) / len(values_C)
    return values[::-1]


def _described(trajectory: Trajectory, last: AgentCall, is_cut_off: bool) -> Trajectory:
    """With the messages up to its last answer, where it has any. An agent that has ended because the context had no
    room is cut off by the length limit, as a conversation is."""
    if last.prompt.messages is not None:
        trajectory.messages = [*last.prompt.messages, last.reply]
    if is_cut_off and trajectory.finish == "stop":
        trajectory.finish = "length"
    return trajectory
