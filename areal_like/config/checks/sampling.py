"""Sampling that the trainer cannot reproduce: its log-probabilities are then of another distribution than the one that
answers come from, and ratios between the two are wrong. The same for all engines."""

from collections.abc import Iterator, Mapping
from typing import Any

from areal_like.config.sections.generation import GenerationHyperparameters

ALL_TOKENS = 100_000_000
"""A top_k from which on it is no limit."""
ALLOW_KEY = "rollout.allow_mismatched_sampling"


def sampling_distribution(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What keys of `gconfig` say of the distribution, alike where they ask for the same. What ends an answer, and where
    it is cut off, changes no token before it."""
    said = {key: sampling.get(key) for key in KEYS}
    top_k = said["top_k"] or 0
    usual = {key: value if said[key] is None else said[key] for key, value in NEUTRAL.items()}
    return {**said, **usual, "top_k": top_k if 0 < top_k < ALL_TOKENS else 0}


NEUTRAL: dict[str, Any] = {
    **{"greedy": False, "top_p": 1, "min_p": 0},
    **{"frequency_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0},
}
KEYS = ("temperature", "top_k", *NEUTRAL)


def sampler_mismatches(gconfig: GenerationHyperparameters) -> Iterator[tuple[str, str]]:
    """Keys that make answers come from another distribution than the trainer reckons with, and what they do."""
    if gconfig.greedy or gconfig.temperature == 0:
        key = "gconfig.greedy" if gconfig.greedy else "gconfig.temperature"
        alike = ", and all answers of a group are equal" if gconfig.n_samples > 1 else ""
        yield key, f"takes the likeliest token always{alike}"
    if gconfig.top_p < 1:
        yield "gconfig.top_p", f"{gconfig.top_p:g} leaves out unlikely tokens"
    if 0 < gconfig.top_k < ALL_TOKENS:
        yield "gconfig.top_k", f"{gconfig.top_k} leaves out all but the likeliest tokens"
    if gconfig.min_p > 0:
        yield "gconfig.min_p", f"{gconfig.min_p:g} leaves out unlikely tokens"
    if gconfig.frequency_penalty != 0:
        yield "gconfig.frequency_penalty", f"{gconfig.frequency_penalty:g} changes the odds of tokens that were used"
    if gconfig.repetition_penalty != 1:
        yield "gconfig.repetition_penalty", f"{gconfig.repetition_penalty:g} changes the odds of tokens that were seen"
    if gconfig.min_new_tokens:
        yield "gconfig.min_new_tokens", f"{gconfig.min_new_tokens} forbids end tokens before so many others"


def mismatch_problems(gconfig: GenerationHyperparameters) -> Iterator[tuple[str, str]]:
    """The same with what to do."""
    for key, what in sampler_mismatches(gconfig):
        yield key, f"{what}, which the trainer cannot reproduce; take it out, or allow it with {ALLOW_KEY}=true"
