"""Sampler mismatch: sampling that the trainer cannot reproduce. Its log-probabilities are then of another distribution
than the sampler's, and the importance ratios are wrong. The same for all engines."""

from collections.abc import Iterator, Mapping
from typing import Any

from areal_like.config.problems import Problem
from areal_like.config.sections.generation import GenerationHyperparameters

ALL_TOKENS = 100_000_000
"""From this value on top_k is no limit."""
ALLOW_KEY = "rollout.allow_mismatched_sampling"


def sampling_distribution(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `gconfig` that determine the distribution, in a normal form. Stop conditions and length limits do not
    belong to them."""
    values = {key: sampling.get(key) for key in KEYS}
    top_k = values["top_k"] or 0
    usual = {key: value if values[key] is None else values[key] for key, value in NEUTRAL.items()}
    return {**values, **usual, "top_k": top_k if 0 < top_k < ALL_TOKENS else 0}


NEUTRAL: dict[str, Any] = {
    **{"greedy": False, "top_p": 1, "min_p": 0},
    **{"frequency_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0},
}
KEYS = ("temperature", "top_k", *NEUTRAL)


def sampler_mismatches(gconfig: GenerationHyperparameters) -> Iterator[tuple[str, str]]:
    """Keys that make the sampler's distribution differ from the one that the trainer assumes, and their effect."""
    if gconfig.greedy or gconfig.temperature == 0:
        key = "gconfig.greedy" if gconfig.greedy else "gconfig.temperature"
        alike = ", and all answers of a group are equal" if gconfig.n_samples > 1 else ""
        yield key, f"always takes the most likely token{alike}"
    if gconfig.top_p < 1:
        yield "gconfig.top_p", f"{gconfig.top_p:g} excludes unlikely tokens"
    if 0 < gconfig.top_k < ALL_TOKENS:
        yield "gconfig.top_k", f"{gconfig.top_k} excludes all but the most likely tokens"
    if gconfig.min_p > 0:
        yield "gconfig.min_p", f"{gconfig.min_p:g} excludes unlikely tokens"
    if gconfig.frequency_penalty != 0:
        yield (
            "gconfig.frequency_penalty",
            f"{gconfig.frequency_penalty:g} changes the probability of tokens in the answer",
        )
    if gconfig.repetition_penalty != 1:
        yield (
            "gconfig.repetition_penalty",
            f"{gconfig.repetition_penalty:g} changes the probability of tokens seen before",
        )
    if gconfig.min_new_tokens:
        yield "gconfig.min_new_tokens", f"{gconfig.min_new_tokens} suppresses end tokens before that many others"


def mismatch_problems(gconfig: GenerationHyperparameters) -> Iterator[Problem]:
    """The same, with the remedy."""
    for key, what in sampler_mismatches(gconfig):
        remedy = f"remove it, or allow it with {ALLOW_KEY}=true"
        yield Problem(key, f"{what}, which the trainer cannot reproduce; {remedy}")
