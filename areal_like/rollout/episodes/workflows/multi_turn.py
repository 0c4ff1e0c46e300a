"""Several tries: after a wrong answer the model gets a feedback and answers again."""

import time
from collections.abc import Sequence
from typing import Any

from areal_like.config.argument_types import Count, ExportStyle, Positive, Share
from areal_like.data.chat_template import USER, Message
from areal_like.rollout.episodes.episode import Episode
from areal_like.rollout.trajectory import Trajectory

FEEDBACK = "This answer is wrong, or it cannot be read. Find the mistake, then answer the question again."


class MultiTurn:
    """Ends at the first answer whose score is at least `right_from`, after `max_turns` answers, without room for
    another, or after `timeout_s`. The reward is that of the last answer, times `turn_discount` for each one before.
    `{prompt}` in the feedback stands for the prompt of the row, of messages for the last one of the user. With the
    export style `individual` each answer is a sample of its own, whose reward is its own one plus that of the next
    answer times `turn_discount`."""

    needs_reward = True

    def __init__(
        self,
        max_turns: Count = 4,
        turn_discount: Share = 0.9,
        feedback: str = FEEDBACK,
        right_from: float = 1.0,
        timeout_s: Positive | None = None,
        n_trajs: Count = 1,
        export_style: ExportStyle = "concat",
    ) -> None:
        self._max_turns, self._discount, self._feedback = max_turns, turn_discount, feedback
        self._right_from, self._timeout_s = right_from, timeout_s
        self._n_trajs, self._is_individual = n_trajs, export_style == "individual"

    async def run(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory] | None:
        conversations = episode.n_samples * (1 if episode.is_evaluation else self._n_trajs)
        return await episode.each_of(conversations, self._converse, row)

    async def _converse(self, episode: Episode, row: dict[str, Any]) -> list[Trajectory]:
        start, discount, before, cut_off = time.monotonic(), 1.0, list[float](), False
        chat = episode.conversation(row["prompt"], row.get("tools"))
        while True:
            (reward,) = await episode.try_score(row, [await chat.generate()])
            if reward is None or reward.score >= self._right_from or len(chat.turns) == self._max_turns:
                break
            if self._timeout_s is not None and time.monotonic() - start >= self._timeout_s:
                break
            chat.observe(self._feedback.replace("{prompt}", _question(row["prompt"])))
            if cut_off := chat.room < 1:
                break
            discount *= self._discount
            before.append(reward.value)
        if self._is_individual:
            return chat.trajectory(reward, [*before, 0.0], self._discount, cut_off)
        return chat.trajectory(None if reward is None else reward.scaled(discount), cut_off=cut_off)


def _question(prompt: str | Sequence[Message]) -> str:
    if isinstance(prompt, str):
        return prompt
    return next((str(each.get("content", "")) for each in reversed(prompt) if each["role"] == USER), "")
