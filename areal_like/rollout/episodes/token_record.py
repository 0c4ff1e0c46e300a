"""TokenRecord: the token ids of one training sample, as they were sampled and observed."""

from collections.abc import Sequence

import numpy as np

from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.sample import Sample
from areal_like.rollout.trajectory import Trajectory


class TokenRecord:
    """Grows at its end only: what was sampled is never written again."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.token_ids, self._observed_in_loss = list(prompt_ids), [False] * len(prompt_ids)
        self._answers: list[tuple[int, Sample]] = []
        """Where each part begins that was sampled at once."""
        self._begins: list[int] = []
        """The first part of each answer, by its place among these."""

    def observe(self, ids: Sequence[int], in_loss: bool) -> None:
        """Tokens that the model did not write."""
        self.token_ids += ids
        self._observed_in_loss += [in_loss] * len(ids)

    @property
    def num_answers(self) -> int:
        return len(self._begins)

    def answer(self, sample: Sample, continues: bool = False) -> None:
        """`continues`: it is a further part of the answer before it."""
        if not continues:
            self._begins.append(len(self._answers))
        self._answers.append((len(self.token_ids), sample))
        self.token_ids += sample.token_ids
        self._observed_in_loss += [False] * len(sample.token_ids)

    def by_answer(self) -> list["TokenRecord"]:
        """A record for each answer: the tokens before it are its prompt. Observed tokens are in the loss of the answer
        that follows them."""
        records, seen = list[TokenRecord](), 0
        for place, (start, sample) in enumerate(self._answers):
            continues = place not in self._begins
            if not continues:
                records.append(TokenRecord(self.token_ids[:seen]))
            for at in range(seen, start):
                records[-1].observe(self.token_ids[at : at + 1], self._observed_in_loss[at])
            records[-1].answer(sample, continues)
            seen = start + len(sample.token_ids)
        return records

    def trajectory(self, reward: Reward | float | None, conversation: int, metrics: dict[str, float]) -> Trajectory:
        """Up to the last answer."""
        last_start, last = self._answers[-1]
        total = last_start + len(last.token_ids)
        loss_mask = np.array(self._observed_in_loss[:total], np.uint8)
        logprobs, versions = np.zeros(total, np.float32), np.full(total, -1, np.int32)
        for start, sample in self._answers:
            span = slice(start, start + len(sample.token_ids))
            loss_mask[span], logprobs[span], versions[span] = 1, sample.logprobs, sample.versions
        value, parts = (reward.value, reward.parts) if isinstance(reward, Reward) else (reward, {})
        return Trajectory(
            *(np.array(self.token_ids[:total], np.int32), loss_mask, logprobs, versions),
            *(value, dict(parts), last.finish),
            metrics=dict(metrics),
            conversation=conversation,
        )
