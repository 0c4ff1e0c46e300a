"""Conversation: one sample of a row as answers of the model and messages of others. Token ids are the record."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_like.data.chat_template import USER, Message
from areal_like.data.conversation_text import ConversationText, NextPrompt
from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.sample import RowError, Sample
from areal_like.rollout.episodes.token_record import TokenRecord
from areal_like.rollout.trajectory import TEMPLATE_BREAKS, TURNS, Trajectory

INTERLEAVED, BRANCHING = "interleaved", "branching"

Generator = Callable[[Sequence[int], int, dict[str, Any]], Awaitable[Sample]]
"""(prompt ids, number of the turn, sampling) -> one answer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConversationRules:
    """Of all conversations of a worker."""

    trajectory_strategy: str = INTERLEAVED
    mask_env_responses: bool = True
    context_length: int | None = None
    """Of the servers, where it is known."""
    warned: set[str] = field(default_factory=set)
    """What was logged, each once."""


class Conversation:
    """Each answer is generated from the ids of all before it, as they were sampled. Where the chat template writes
    earlier turns differently from then on, such as without their thoughts, a new training sample begins, and `breaks`
    counts it."""

    def __init__(
        self,
        number: int,
        messages: Sequence[Message],
        text: ConversationText,
        generator: Generator,
        encode: Callable[[str], list[int]],
        max_tokens: int,
        rules: ConversationRules,
    ) -> None:
        """`number` is its place among the samples of the group."""
        self.number = number
        self.messages = list(messages)
        self.turns: list[Sample] = []
        """What `generate` returned."""
        self.breaks = 0
        self._text, self._generator, self._encode = text, generator, encode
        self._limit = min(max_tokens, rules.context_length or max_tokens)
        self._rules = rules
        self._records: list[TokenRecord] = []
        self._prompt_text = ""
        """Of the prompt of the last message of the model."""
        self._answer_ids: list[int] = []
        """Of the last message of the model."""
        self._continues = False
        """Whether the next answer continues that message."""
        self._prepared: NextPrompt | None = None

    @property
    def token_ids(self) -> list[int]:
        """Those of the training sample that grows."""
        return self._records[-1].token_ids if self._records else []

    @property
    def room(self) -> int:
        """Tokens that the next answer may have in `gconfig.max_tokens` and the context; 0 or less for none."""
        prompt = self._next_prompt()
        before = 0 if prompt.rewritten else len(self.token_ids)
        return self._limit - before - len(prompt.ids)

    def observe(self, *messages: str | Message) -> None:
        """Messages of the user, of tools or of an environment; a text is one of the user."""
        self._continues = False
        self.messages += [{"role": USER, "content": each} if isinstance(each, str) else each for each in messages]
        self._prepared = None

    def insert(self, text: str) -> None:
        """A text within the message of the model, such as the output of code in it: the next answer continues it."""
        if not self.turns:
            raise ValueError("insert() continues an answer, and there is none; call generate() first")
        ids = self._encode(text)
        self._records[-1].observe(ids, in_loss=not self._rules.mask_env_responses)
        self._answer_ids += ids
        self.messages[-1] = self._text.answer(self._answer_ids)
        self._continues, self._prepared = True, None

    async def generate(self, **sampling: Any) -> Sample:
        """The next answer. `sampling` is that of `Episode.generate`. If it fails, nothing has happened, and it may be
        called again."""
        prompt = self._next_prompt()
        begins = not self._records or bool(prompt.rewritten)
        ids = prompt.ids if begins else [*self.token_ids, *prompt.ids]
        sample = await self._generator(ids, len(self.turns), sampling)
        if begins:
            self._count_break(prompt)
            self._records.append(TokenRecord(prompt.ids))
        else:
            self._records[-1].observe(prompt.ids, in_loss=not self._rules.mask_env_responses)
        self._records[-1].answer(sample, self._continues)
        self.turns.append(sample)
        if not self._continues:
            self._prompt_text, self._answer_ids = prompt.text, []
            self.messages.append({})
        self._answer_ids += sample.token_ids
        self._prepared, self._continues = None, False
        self.messages[-1] = self._text.answer(self._answer_ids[:-1] if sample.ends_by_token else self._answer_ids)
        return sample

    def trajectory(
        self,
        reward: Reward | float | None,
        turn_rewards: Sequence[float] | None = None,
        discount: float = 1.0,
        cut_off: bool = False,
        **metrics: float,
    ) -> list[Trajectory]:
        """The training samples of the conversation, all with this reward. With `turn_rewards`, each answer is a sample
        of its own: its reward is its own one, plus that of the next answer times `discount`, and `reward` counts as a
        part of the last one's. Parts of an answer that `insert` continued are one answer. `cut_off`: it has ended
        because there was no `room`; its last sample then counts as one that was cut off by the length limit."""
        if not self.turns:
            raise ValueError("trajectory(): the conversation has no answer; call generate() first")
        num_answers = sum(record.num_answers for record in self._records)
        metrics = {TURNS: float(num_answers), TEMPLATE_BREAKS: float(self.breaks), **metrics}
        records = self._records
        if turn_rewards is not None or self._rules.trajectory_strategy == BRANCHING:
            records = [each for record in records for each in record.by_answer()]
        if turn_rewards is None or reward is None:
            return self._described([record.trajectory(reward, self.number, metrics) for record in records], cut_off)
        if len(turn_rewards) != num_answers:
            raise ValueError(f"trajectory(): {len(turn_rewards)} turn_rewards for {num_answers} answers")
        final, parts = (reward.value, reward.parts) if isinstance(reward, Reward) else (reward, {})
        values = discounted(turn_rewards, final, discount)
        rewards = [Reward(value, parts) for value in values]
        pairs = zip(records, rewards, strict=True)
        return self._described([record.trajectory(each, self.number, metrics) for record, each in pairs], cut_off)

    def _described(self, trajectories: list[Trajectory], cut_off: bool) -> list[Trajectory]:
        last = trajectories[-1]
        last.messages = list(self.messages)
        if cut_off and last.finish == "stop":
            last.finish = "length"
        return trajectories

    def _next_prompt(self) -> NextPrompt:
        if self._prepared is None:
            try:
                self._prepared = self._prepare()
            except ValueError as fault:
                raise RowError(str(fault)) from fault
        return self._prepared

    def _prepare(self) -> NextPrompt:
        if not self.turns:
            return self._text.first(self.messages)
        if self._continues:
            return NextPrompt([], self._prompt_text)
        return self._text.following(self.messages, self._prompt_text, self._answer_ids)

    def _count_break(self, prompt: NextPrompt) -> None:
        if not prompt.rewritten:
            return
        self.breaks += 1
        if "break" not in self._rules.warned:
            self._rules.warned.add("break")
            log.warning(
                "the chat template rewrites earlier turns, so that a new training sample begins there "
                "(rollout/template_breaks counts them; logged once): %s",
                prompt.rewritten,
            )


def discounted(turn_rewards: Sequence[float], final: float, discount: float) -> list[float]:
    """Of each turn: its reward and, discounted by turn, those of all turns after it."""
    values, following = [], 0.0
    for place, reward in reversed(list(enumerate(turn_rewards))):
        following = reward + (final if place == len(turn_rewards) - 1 else discount * following)
        values.append(following)
    return values[::-1]
