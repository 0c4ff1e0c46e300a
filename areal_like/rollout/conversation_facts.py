"""Facts of conversations: the training samples of one conversation count once, together."""

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
    their own, this is the sum of all that follow. It is cut off if one of its samples is."""
    if len(samples) == 1:
        return samples[0]
    rewarded = next((each for each in samples if each["reward"] is not None), samples[0])
    is_cut_off = any(each["finish"] == CUT_OFF for each in samples)
    return {
        **samples[-1],
        **{name: sum(each[name] for each in samples) for name in ("length", "generated", "loss_tokens")},
        "reward": rewarded["reward"],
        "rewards": rewarded["rewards"],
        "finish": CUT_OFF if is_cut_off else samples[-1]["finish"],
        "version_min": min(each["version_min"] for each in samples),
        "version_max": max(each["version_max"] for each in samples),
    }
