"""Metrics of batches and evaluations, from the small facts of their samples."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from areal_like.config.sections.reward import SCORE_PART
from areal_like.data.votes import VoteRule
from areal_like.observe.evaluation_statistics import best_of, bootstrap, pass_sizes
from areal_like.observe.learnability import AnswerFacts, judge
from areal_like.rollout.batches import RolloutBatch
from areal_like.rollout.conversation_facts import CUT_OFF, agent_rewards, by_conversation, conversations_of, together
from areal_like.rollout.groups import Group, answer_votes
from areal_like.rollout.trajectory import TEMPLATE_BREAKS, TURNS

TOOL_STATISTICS = ("tool_calls", "tool_errors")
"""In the metrics of trajectories, from workflows with tools."""

Facts = Sequence[dict[str, Any]]


def batch_metrics(batch: RolloutBatch, rule: VoteRule) -> dict[str, float]:
    """All but `rollout/samples` count an answer once, whether it is one sample or a conversation of several."""
    answers = [samples for group in batch.groups for samples in conversations_of(group.facts)]
    facts = [together(samples) for samples in answers]
    rewards = [fact["reward"] for fact in facts if fact["reward"] is not None]
    mean = _mean(rewards)
    return {
        "rollout/groups": len(batch.groups),
        "rollout/samples": sum(len(group.facts) for group in batch.groups),
        "rollout/answers": len(answers),
        "rollout/answer_tokens_mean": _mean(fact["generated"] for fact in facts),
        "rollout/answer_tokens_max": max(fact["generated"] for fact in facts),
        "rollout/truncated_share": _mean(fact["finish"] == CUT_OFF for fact in facts),
        "reward/mean": mean,
        "reward/std": math.sqrt(_mean((reward - mean) ** 2 for reward in rewards)),
        "reward/min": min(rewards),
        "reward/max": max(rewards),
        "reward/groups_without_spread": sum(not group.has_spread(rule) for group in batch.groups),
        "reward/answers_without_reward": len(facts) - len(rewards),
        "reward/answers_without_vote": sum(not answer_votes(samples, rule) for samples in answers),
        **_parts("reward/part/", facts),
        **_conversations("rollout/", facts),
        **environment_metrics(batch.groups),
    }


def environment_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Of each environment; nothing where there are none."""
    by_name: dict[str, list[list[dict[str, Any]]]] = {}
    for group in groups:
        facts = by_conversation(group.facts)
        if name := facts[0].get("env", ""):
            by_name.setdefault(name, []).append(facts)
    metrics: dict[str, float] = {}
    for name, groups_of_facts in by_name.items():
        scored = [with_reward(facts) for facts in groups_of_facts]
        answers = [fact for facts in scored for fact in facts]
        prefix = f"env/{name}"
        metrics |= {
            f"{prefix}/groups": len(groups_of_facts),
            f"{prefix}/reward": _mean(fact["reward"] for fact in answers),
            f"{prefix}/score": _mean(map(score_of, answers)),
            f"{prefix}/all_right": sum(min(map(score_of, facts)) >= 1 for facts in scored),
            f"{prefix}/all_wrong": sum(max(map(score_of, facts)) <= 0 for facts in scored),
            f"{prefix}/answer_tokens_mean": _mean(fact["generated"] for facts in groups_of_facts for fact in facts),
        }
    return metrics


def judge_groups(groups: Sequence[Group], rule: VoteRule, replaced: Sequence[list[AnswerFacts]] = ()) -> dict[str, Any]:
    """The verdict on the answers of the first step. `replaced`: those of groups that others replaced. Without them all
    groups would have different rewards, where equal ones are replaced."""
    verdict = judge([*(group_answers(group.facts, rule) for group in groups), *replaced])
    return {**verdict.record(), "text": verdict.text}


def group_answers(facts: Facts, rule: VoteRule) -> list[AnswerFacts]:
    """What a verdict needs of each answer of a group."""
    return [_answer_facts(samples, rule) for samples in conversations_of(facts)]


def _answer_facts(samples: Facts, rule: VoteRule) -> AnswerFacts:
    fact = together(samples)
    score = None if fact["reward"] is None else score_of(fact)
    agents = tuple(sorted(agent_rewards(samples).items()))
    return AnswerFacts(fact["reward"], score, fact["finish"] == CUT_OFF, answer_votes(samples, rule), agents)


class AgentMetrics:
    """Statistics of these names in the `metrics` of trajectories, each over the trajectories that have it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._missing: set[str] = set()

    def of(self, batch: RolloutBatch) -> tuple[dict[str, float], list[str]]:
        """The metrics, without names that no trajectory has, and a warning at the first time that one is missing."""
        metrics: dict[str, float] = {}
        warnings = []
        for name in self._names:
            # A metric that is not a number reaches the controller as None.
            recorded = (
                fact.get("metrics", {}).get(name) for group in batch.groups for fact in by_conversation(group.facts)
            )
            if values := [float(value) for value in recorded if value is not None]:
                prefix = f"rollout/agent/{name}"
                metrics |= {f"{prefix}/mean": _mean(values), f"{prefix}/min": min(values), f"{prefix}/max": max(values)}
            elif name not in self._missing:
                self._missing.add(name)
                warnings.append(
                    f"actor.log_agent_stats_keys: no trajectory of batch {batch.step} has {name!r} in its metrics; it "
                    "is logged only for batches that have it"
                )
        return metrics, warnings


def evaluation_metrics(facts: Facts) -> dict[str, float]:
    """The score is the reward part `score`, or the reward if there is none. Answers without a reward have no score."""
    scored = with_reward(facts)
    return {
        "eval/score": _mean(map(score_of, scored)) if scored else math.nan,
        "eval/reward": _mean(fact["reward"] for fact in scored) if scored else math.nan,
        "eval/samples": len(facts),
        "eval/answer_tokens_mean": _mean(fact["generated"] for fact in facts),
        "eval/truncated_share": _mean(fact["finish"] == CUT_OFF for fact in facts),
        **_parts("eval/part/", facts),
        **_conversations("eval/", facts),
        **_environment_scores(scored),
    }


def _environment_scores(scored: Facts) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for fact in scored:
        if name := fact.get("env", ""):
            by_name.setdefault(name, []).append(score_of(fact))
    return {f"eval/env/{name}": _mean(scores) for name, scores in by_name.items()}


def with_reward(facts: Facts) -> list[dict[str, Any]]:
    return [fact for fact in facts if fact["reward"] is not None]


def score_of(fact: Mapping[str, Any]) -> float:
    score: float = fact["rewards"].get(SCORE_PART, fact["reward"])
    return score


def spread_metrics(scores_R: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of the scores of each row's answers: avg@k and pass@k, with bands."""
    means_R = [_mean(scores) for scores in scores_R]
    metrics = _with_band("eval/score", _mean(score for scores in scores_R for score in scores), means_R)
    n = max(map(len, scores_R))
    if n > 1:
        metrics |= _with_band(f"eval/avg@{n}", _mean(means_R), means_R)
    for k in pass_sizes(n):
        best_R = [best_of(scores, k) for scores in scores_R if len(scores) >= k]
        metrics |= _with_band(f"eval/pass@{k}", _mean(best_R), best_R)
    return metrics


def _with_band(name: str, value: float, values_R: Sequence[float]) -> dict[str, float]:
    low, high = bootstrap(values_R)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def is_score(name: str) -> bool:
    """Whether a metric of an evaluation is made of rewards."""
    return name == "eval/reward" or name.startswith(
        ("eval/score", "eval/part/", "eval/env/", "eval/avg@", "eval/pass@")
    )


def _parts(prefix: str, facts: Facts) -> dict[str, float]:
    """Means of the reward parts, each over the samples that have it."""
    names = sorted({name for fact in facts for name in fact["rewards"]})
    return {f"{prefix}{n}": _mean(fact["rewards"][n] for fact in facts if n in fact["rewards"]) for n in names}


def _conversations(prefix: str, facts: Facts) -> dict[str, float]:
    """Nothing where there are none."""
    conversations = [fact for fact in facts if TEMPLATE_BREAKS in fact.get("metrics", {})]
    if not conversations:
        return {}
    metrics = [fact["metrics"] for fact in conversations]
    turns = [each[TURNS] for each in metrics]
    statistics = {
        f"{prefix}conversations": len(metrics),
        f"{prefix}turns_mean": _mean(turns),
        f"{prefix}turns_max": max(turns),
        f"{prefix}turn_tokens_mean": sum(fact["generated"] for fact in conversations) / sum(turns),
        f"{prefix}template_breaks": sum(each[TEMPLATE_BREAKS] for each in metrics),
    }
    for name in TOOL_STATISTICS:
        if values := [each[name] for each in metrics if each.get(name) is not None]:
            statistics[f"{prefix}{name}_mean"] = _mean(values)
    return statistics


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
