"""Whether answers leave something to learn: pass@k, groups without spread and answers that are cut off, as a verdict
that names the keys to change."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from areal_like.observe.evaluation_statistics import best_of

GOOD, WEAK, NONE = "good signal", "weak signal", "no signal"
LITTLE_SPREAD = 0.25
"""A smaller share of groups with different rewards is a weak signal."""
MUCH_CUT_OFF = 0.25
"""From this share on longer answers are advised."""
SOLVED = 0.5
"""Mean score from which on a group without spread counts as solved."""


class AnswerFacts(NamedTuple):
    """`score`: what evaluations report, from 0 to 1. None: the reward failed. `votes`: counts in the baseline of its
    group. `agents`: the reward of each agent, where there are several."""

    reward: float | None
    score: float | None
    is_truncated: bool
    votes: bool = True
    agents: tuple[tuple[str, float], ...] = ()


class Advice(NamedTuple):
    """What helps, and the key to change."""

    text: str
    key: str


@dataclass(frozen=True)
class Verdict:
    """`k`: answers of a group. `pass_1` and `pass_k` are the expected score of one answer and of the best of k; None
    without any reward. `spread` and the others are counts."""

    groups: int
    k: int
    answers: int
    pass_1: float | None
    pass_k: float | None
    spread: int
    solved: int
    truncated: int
    without_reward: int

    @property
    def signal(self) -> str:
        if not self.spread:
            return NONE
        return WEAK if self.spread < LITTLE_SPREAD * self.groups else GOOD

    @property
    def advice(self) -> list[Advice]:
        """The most effective first; empty where nothing needs to change."""
        advice = []
        if self.without_reward:
            advice.append(Advice(f"a reward that does not fail ({self.without_reward} of {self.answers})", "reward"))
        if self.without_reward == self.answers:
            return advice
        if self.signal != GOOD:
            equal = self.groups - self.spread
            hard = 2 * self.solved <= equal
            rows = "easier rows" if hard else "harder rows"
            advice += [Advice(rows, "train_dataset.path"), Advice("more samples", "gconfig.n_samples")]
        if self.truncated >= MUCH_CUT_OFF * self.answers:
            advice.append(Advice("longer answers", "gconfig.max_new_tokens"))
        return advice

    @property
    def text(self) -> str:
        """One line: signal, advice, facts."""
        help_text = _listed([f"{each.text} ({each.key})" for each in self.advice])
        return f"{self.signal}{': ' if help_text else ''}{help_text}; {self.facts_text}"

    @property
    def facts_text(self) -> str:
        parts = [f"{self.spread} of {self.groups} groups have different rewards"]
        if self.pass_1 is not None:
            parts.append(f"pass@1 {self.pass_1:.3g}")
        if self.pass_k is not None and self.k > 1:
            parts.append(f"pass@{self.k} {self.pass_k:.3g}")
        parts.append(f"{self.truncated} of {self.answers} answers are cut off")
        return ", ".join(parts)

    def record(self) -> dict[str, Any]:
        """For the ledger."""
        return {"signal": self.signal, **asdict(self), "change": [each.key for each in self.advice]}


def judge(groups: Sequence[Sequence[AnswerFacts]]) -> Verdict:
    """The verdict on groups of answers. Groups of a single answer have no baseline of their own: they are compared with
    each other, as one group."""
    answers = [answer for group in groups for answer in group]
    compared = groups if any(len(group) > 1 for group in groups) else [answers]
    spreads = [_has_spread(group) for group in compared]
    scores = [_scores(group) for group in groups]
    k = min((len(each) for each in scores if each), default=0)
    equal = [_scores(group) for group, has_spread in zip(compared, spreads, strict=True) if not has_spread]
    return Verdict(
        groups=len(compared),
        k=k,
        answers=len(answers),
        pass_1=_mean([best_of(each, 1) for each in scores if each]),
        pass_k=_mean([best_of(each, k) for each in scores if each]),
        spread=sum(spreads),
        solved=sum(math.fsum(each) >= SOLVED * len(each) for each in equal if each),
        truncated=sum(answer.is_truncated for answer in answers),
        without_reward=sum(answer.reward is None for answer in answers),
    )


def _has_spread(group: Sequence[AnswerFacts]) -> bool:
    rewards = {(answer.reward, answer.agents) for answer in group if answer.votes and answer.reward is not None}
    return len(rewards) > 1


def _scores(group: Sequence[AnswerFacts]) -> list[float]:
    return [answer.score for answer in group if answer.score is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _listed(texts: Sequence[str]) -> str:
    """`a, b or c`"""
    return f"{', '.join(texts[:-1])} or {texts[-1]}" if len(texts) > 1 else "".join(texts)
