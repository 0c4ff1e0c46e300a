"""Groups that others replace in a batch: how many, and before the first one their answers, for the verdict on it."""

from collections.abc import Sequence
from typing import Any

from areal_like.data.votes import VoteRule
from areal_like.observe.learnability import AnswerFacts
from areal_like.rollout.decisions import REPLACED
from areal_like.rollout.step_metrics import group_answers


class ReplacedGroups:
    """Those since the last batch: equal rewards, or too easy or hard. `is_judged`: the next batch is the first one."""

    def __init__(self, rule: VoteRule, is_judged: bool) -> None:
        self._rule, self._is_judged = rule, is_judged
        self.count = 0
        self.answers: list[list[AnswerFacts]] = []

    def add(self, facts: Sequence[dict[str, Any]], reason: str) -> None:
        """A group that was left out, if this is a reason for which another takes its place."""
        if reason not in REPLACED:
            return
        self.count += 1
        if self._is_judged:
            self.answers.append(group_answers(facts, self._rule))

    def begin_batch(self) -> None:
        self.count, self.answers, self._is_judged = 0, [], False
