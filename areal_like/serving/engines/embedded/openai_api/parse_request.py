"""Parses request bodies of OpenAI's and vLLM's interfaces. Keys that the engine does not support are refused, not
ignored."""

from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.serving.requests import CLIENT_PRIORITY, BadRequest, GroupRequest, shorten

MAX_TOP_LOGPROBS = 5
"""As in OpenAI's interface."""
MAX_N = 128
"""Answers to one prompt, as in OpenAI's interface."""
MAX_PROMPTS = 256
MAX_CHARACTERS_PER_TOKEN = 32
"""Of a text, per token of the context: meaningful text never has fewer tokens."""
MAX_SCORED_TOKENS = 1 << 18
"""Prompt tokens with log-probabilities in one response, in which each choice repeats them."""
MAX_CLIENT_PRIORITY = 1 << 31
NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
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
"""Their name -> ours."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    for key, neutral in NEUTRAL_VALUES.items():
        if body.get(key) not in neutral:
            raise BadRequest(f"{key}: {shorten(body[key])} is not supported by this server; leave it out")


def sampling_keys(body: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """By the keys of `gconfig`; `max_tokens`: where the body has none."""
    sampling = {key: body[key] for key in SAME_KEYS if body.get(key) is not None}
    sampling |= {ours: body[theirs] for theirs, ours in RENAMED_KEYS.items() if body.get(theirs) is not None}
    return {"temperature": 1.0, "max_new_tokens": max_tokens, **sampling}


def parse_num_logprobs(body: Mapping[str, Any], key: str) -> int | None:
    """Number of most likely tokens besides each token; None: no log-probabilities."""
    value = body.get(key)
    if value is None or value is False:
        return None
    number = 1 if value is True else value
    if type(number) is not int or not 0 <= number <= MAX_TOP_LOGPROBS:
        raise BadRequest(f"{key}: {shorten(value)} is not a number from 0 to {MAX_TOP_LOGPROBS}")
    return number


def parse_seed(body: Mapping[str, Any], default: int) -> int:
    seed = body.get("seed")
    if seed is None:
        return default
    if type(seed) is not int:
        raise BadRequest(f"seed: {shorten(seed)} is not a whole number")
    return seed % (1 << 64)


def parse_n(body: Mapping[str, Any]) -> int:
    """Number of answers to each prompt."""
    n = 1 if body.get("n") is None else body["n"]
    if type(n) is not int or not 1 <= n <= MAX_N:
        raise BadRequest(f"n: {shorten(n)} is not a whole number from 1 to {MAX_N}")
    return n


def check_num_scored(groups: Sequence[GroupRequest]) -> None:
    """Limits the prompts whose log-probabilities are computed."""
    tokens = sum(len(group.prompt) * group.n for group in groups)
    if tokens > MAX_SCORED_TOKENS:
        raise BadRequest(
            f"prompt: log-probabilities of {tokens} tokens (prompts times n) are too many at once; ask for at most "
            f"{MAX_SCORED_TOKENS}"
        )


def parse_priority(body: Mapping[str, Any]) -> int:
    """Priority among clients, all of them after the run."""
    priority = body.get("priority") or 0
    if type(priority) is not int:
        raise BadRequest(f"priority: {shorten(priority)} is not a whole number")
    return CLIENT_PRIORITY + max(-MAX_CLIENT_PRIORITY, min(priority, MAX_CLIENT_PRIORITY))


def check_text_length(text: str, context_length: int) -> None:
    """Limits what a tokenizer has to read."""
    if len(text) > MAX_CHARACTERS_PER_TOKEN * context_length:
        raise BadRequest(
            f"prompt: {len(text)} characters cannot fit into a context of {context_length} tokens; shorten it"
        )


def parse_flag(body: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{key}: {shorten(value)} is neither true nor false")
    return default if value is None else value


def with_client_key(message: str) -> str:
    """Names the key as these interfaces do, not as `gconfig` does."""
    text = message.removeprefix("gconfig.")
    for theirs, ours in RENAMED_KEYS.items():
        text = text.replace(ours, theirs, 1)
    return text
