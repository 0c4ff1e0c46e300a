"""Facts of conversations: the training samples of one conversation count once, together."""

import math
from collections.abc import Sequence
from typing import Any

CUT_OFF = "length"
"""`finish` of what ended at the length limit."""


def numbered(conversations: Sequence[int | None]) -> list[int]:
    """The answer of each sample of a group, numbered from 0 in order of appearance. Samples with the same conversation
    are one answer, each without one is an answer by itself."""
    keys = [(-1, place) if each is None else (0, each) for place, each in enumerate(conversations)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def conversation_numbers(facts: Sequence[dict[str, Any]]) -> list[int]:
    """The conversation of each sample of a group, numbered from 0 in order of appearance."""
    return numbered([fact.get("conversation") for fact in facts])


def conversations_of(facts: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The samples of each conversation of a group."""
    conversations: dict[int, list[dict[str, Any]]] = {}
    for number, fact in zip(conversation_numbers(facts), facts, strict=True):
        conversations.setdefault(number, []).append(fact)
    return list(conversations.values())


def by_conversation(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record of facts for each conversation of a group."""
    return [together(samples) for samples in conversations_of(facts)]


def together(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of one conversation. Its reward is that of its first sample that has one: where turns have rewards of
    their own, this is the sum of all that follow. With several agents it is the mean of `agent_rewards`. It is cut off
    if one of its samples is."""
    if len(samples) == 1:
        return samples[0]
    rewards = agent_rewards(samples)
    parts = [each["rewards"] for each in _rewarded(samples)]
    is_cut_off = any(each["finish"] == CUT_OFF for each in samples)
    return {
        **samples[-1],
        **{name: sum(each[name] for each in samples) for name in ("length", "generated", "loss_tokens")},
        "reward": math.fsum(rewards.values()) / len(rewards) if rewards else None,
        "rewards": {name: _mean([each[name] for each in parts if name in each]) for each in parts for name in each},
        "finish": CUT_OFF if is_cut_off else samples[-1]["finish"],
        "version_min": min(each["version_min"] for each in samples),
        "version_max": max(each["version_max"] for each in samples),
    }


def agent_rewards(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each agent of a conversation that has a reward: the mean over its runs."""
    rewards: dict[str, list[float]] = {}
    for each in _rewarded(samples):
        rewards.setdefault(each.get("agent", ""), []).append(each["reward"])
    return {agent: _mean(values) for agent, values in rewards.items()}


def _rewarded(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first sample of each run that has a reward."""
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    for each in samples:
        if each["reward"] is not None:
            runs.setdefault((each.get("agent", ""), each.get("run", 0)), each)
    return list(runs.values())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
