"""Sampling parameters of requests: those of training, and those of evaluations, which change some of them."""

from dataclasses import replace
from typing import Any

from areal_like.config.sections.evaluation import EvalSampling
from areal_like.config.sections.generation import GenerationHyperparameters

SAMPLING = ("temperature", "greedy", "max_new_tokens", "max_tokens", "stop_token_ids")
"""Keys of `gconfig` that every request has; others are added where they differ from their default."""
EFFORT = "reasoning_effort"
"""In the parameters of an evaluation, for the chat template or an API: no engine gets it."""
NOT_SAMPLING = ("n_samples", "seed")
CHOICE = ("temperature", "top_p", "top_k", "min_p")
"""Keys that have no effect where the most likely token is taken."""


def sampling_params(gconfig: GenerationHyperparameters) -> dict[str, Any]:
    """Sampling parameters of a request. A temperature of 0 is greedy."""
    kind: Any = GenerationHyperparameters
    default = kind()
    params = {
        name: value
        for name, value in vars(gconfig).items()
        if name in SAMPLING or (name not in NOT_SAMPLING and value != getattr(default, name))
    }
    return {**params, "greedy": gconfig.greedy or gconfig.temperature == 0}


def evaluation_params(gconfig: GenerationHyperparameters, n_samples: int, *levels: EvalSampling) -> dict[str, Any]:
    """Those of an evaluation: what a level sets replaces what those before it set, and `gconfig`. One answer per row
    is greedy unless a level sets how tokens are chosen, which also replaces `greedy` of those before it."""
    changed: dict[str, Any] = {}
    for level in levels:
        own = {name: value for name, value in vars(level).items() if value is not None}
        if any(name in own for name in CHOICE):
            changed.pop("greedy", None)
        changed |= {name: value for name, value in own.items() if name != "seed"}
    effort = {EFFORT: changed.pop(EFFORT)} if EFFORT in changed else {}
    is_chosen = any(name in changed for name in CHOICE)
    greedy = changed.pop("greedy", (gconfig.greedy or n_samples == 1) and not is_chosen)
    return sampling_params(replace(gconfig, **changed, greedy=greedy)) | effort
