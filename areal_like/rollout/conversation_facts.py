"""Facts of conversations: the training samples of one conversation count once, together."""

from collections.abc import Sequence
from typing import Any


def conversation_numbers(facts: Sequence[dict[str, Any]]) -> list[int]:
    """The conversation of each sample of a group, numbered from 0 in order of appearance."""
    numbers: dict[tuple[str, int], int] = {}
    for place, fact in enumerate(facts):
        numbers.setdefault(_key(place, fact), len(numbers))
    return [numbers[_key(place, fact)] for place, fact in enumerate(facts)]


def _key(place: int, fact: dict[str, Any]) -> tuple[str, int]:
    conversation = fact.get("conversation")
    return ("sample", place) if conversation is None else ("conversation", conversation)


def by_conversation(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record of facts for each conversation of a group. Its reward is that of its first sample: where
    turns have rewards of their own, this is the sum of all that follow."""
    conversations: dict[int, list[dict[str, Any]]] = {}
    for number, fact in zip(conversation_numbers(facts), facts, strict=True):
        conversations.setdefault(number, []).append(fact)
    return [samples[0] if len(samples) == 1 else _together(samples) for samples in conversations.values()]


def _together(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(each[name] for each in samples) for name in ("length", "generated", "loss_tokens")}
    return {
        **samples[-1],
        **sums,
        "reward": samples[0]["reward"],
        "rewards": samples[0]["rewards"],
        "version_min": min(each["version_min"] for each in samples),
        "version_max": max(each["version_max"] for each in samples),
    }
