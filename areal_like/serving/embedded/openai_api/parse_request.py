"""What clients of OpenAI's and vLLM's interfaces ask for, in the engine's words. What they set and the engine does not
do is refused, not ignored."""

from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.serving.requests import CLIENT_PRIORITY, BadRequest, GroupRequest, shorten

MAX_TOP_LOGPROBS = 5
"""As in OpenAI's interface."""
MAX_N = 128
"""To one prompt, as in OpenAI's interface."""
MAX_PROMPTS = 256
MAX_CHARACTERS_PER_TOKEN = 32
"""Of a text, for each token of the context: no tokenizer makes fewer tokens of one that has meaning."""
MAX_SCORED_TOKENS = 1 << 18
"""Tokens of prompts whose log-probabilities stand in one answer, where each of its choices repeats them."""
HIGHEST_PRIORITY = 1 << 31
MUST_BE_NEUTRAL = {
    "stream": (None, False),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "ignore_eos": (None, False),
    "use_beam_search": (None, False),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "truncate_prompt_tokens": (None,),
    "structured_outputs": (None,),
    "response_format": (None, {"type": "text"}),
    "prompt_embeds": (None,),
    "features": (None,),
    "content_parts": (None,),
    "cache_salt": (None,),
}
SAME_KEYS = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "repetition_penalty"),
    *("stop_token_ids", "stop"),
)
RENAMED_KEYS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
"""Names there -> names here."""


def refuse_unsupported(said: Mapping[str, Any]) -> None:
    for key, neutral in MUST_BE_NEUTRAL.items():
        if said.get(key) not in neutral:
            raise BadRequest(f"{key}: {shorten(said[key])} is something that this server does not do; leave it out")


def sampling_keys(said: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """By the keys of `gconfig`; `max_tokens` is for who says nothing."""
    found = {key: said[key] for key in SAME_KEYS if said.get(key) is not None}
    found |= {ours: said[theirs] for theirs, ours in RENAMED_KEYS.items() if said.get(theirs) is not None}
    return {"temperature": 1.0, "max_new_tokens": max_tokens, **found}


def parse_num_logprobs(said: Mapping[str, Any], key: str) -> int | None:
    """How many of the likeliest tokens are wanted beside each; None: no log-probabilities are."""
    value = said.get(key)
    if value is None or value is False:
        return None
    number = 1 if value is True else value
    if type(number) is not int or not 0 <= number <= MAX_TOP_LOGPROBS:
        raise BadRequest(f"{key}: {shorten(value)} is not a number from 0 to {MAX_TOP_LOGPROBS}")
    return number


def parse_seed(said: Mapping[str, Any], usual: int) -> int:
    seed = said.get("seed")
    if seed is None:
        return usual
    if type(seed) is not int:
        raise BadRequest(f"seed: {shorten(seed)} is not a whole number")
    return seed % (1 << 64)


def parse_n(said: Mapping[str, Any]) -> int:
    """How many are wanted to each prompt."""
    n = 1 if said.get("n") is None else said["n"]
    if type(n) is not int or not 1 <= n <= MAX_N:
        raise BadRequest(f"n: {shorten(n)} is not a whole number from 1 to {MAX_N}")
    return n


def check_num_scored(groups: Sequence[GroupRequest]) -> None:
    """Before log-probabilities of their prompts are computed."""
    tokens = sum(len(group.prompt) * group.n for group in groups)
    if tokens > MAX_SCORED_TOKENS:
        raise BadRequest(
            f"prompt: log-probabilities of {tokens} tokens (prompts times n) are too many at once; ask for at most "
            f"{MAX_SCORED_TOKENS}"
        )


def parse_priority(said: Mapping[str, Any]) -> int:
    """Among clients; all of them come after the run."""
    priority = said.get("priority") or 0
    if type(priority) is not int:
        raise BadRequest(f"priority: {shorten(priority)} is not a whole number")
    return CLIENT_PRIORITY + max(-HIGHEST_PRIORITY, min(priority, HIGHEST_PRIORITY))


def check_text_length(text: str, context_length: int) -> None:
    """Before a tokenizer reads it."""
    if len(text) > MAX_CHARACTERS_PER_TOKEN * context_length:
        raise BadRequest(
            f"prompt: {len(text)} characters cannot fit into a context of {context_length} tokens; shorten it"
        )


def parse_flag(said: Mapping[str, Any], key: str, usual: bool = False) -> bool:
    value = said.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{key}: {shorten(value)} is neither true nor false")
    return usual if value is None else value


def with_client_key(complaint: str) -> str:
    """Who speaks these interfaces knows no `gconfig`."""
    text = complaint.removeprefix("gconfig.")
    for theirs, ours in RENAMED_KEYS.items():
        text = text.replace(ours, theirs, 1)
    return text
