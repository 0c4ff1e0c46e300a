"""Filters the request bodies of public clients: bounds numbers and lengths by the model and its context, and drops keys
that name requests, places, processes or programs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from areal_like.config.sections.generation import (
    MAX_STOP_LENGTH,
    MAX_STOP_TEXTS,
    MAX_STOP_TOKENS,
    MIN_REPETITION_PENALTY,
)
from areal_like.process.errors import HttpError
from areal_like.serving.requests import CLIENT_PRIORITY, shorten

DROPPED_KEYS = frozenset(
    (
        *("rid", "request_id", "session_id", "session_params"),
        *("lora_path", "extra_key", "cache_salt"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_transfer_params", "ec_transfer_params"),
        *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("custom_logit_processor", "custom_params", "extra_args"),
    )
)
"""Dropped keys of the engines' bodies: they name a request, a place, another process or a program."""
GRAMMAR_KEYS = frozenset(
    (
        *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag"),
        *("json_schema", "regex", "ebnf", "prompt_embeds", "input_embeds"),
    )
)
"""Programs for the engine: compiling a hostile one can crash it."""
LENGTH_KEYS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "min_tokens",
    "min_new_tokens",
    "truncate_prompt_tokens",
)
COUNT_KEYS = ("n", "best_of", "beam_width")
LOGPROB_KEYS = ("logprobs", "top_logprobs", "prompt_logprobs", "top_logprobs_num", "logprob_start_len")
REAL_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (MIN_REPETITION_PENALTY, 2),
    "length_penalty": (-10, 10),
}
PROMPT_KEYS = ("prompt", "token_ids", "tokens", "input_ids", "text")
TOKEN_LIST_KEYS = ("stop_token_ids", "allowed_token_ids", "token_ids_logprob", "logprob_token_ids")
SAMPLING_PARAMS = "sampling_params"
SMALLEST: Mapping[str, float] = {"temperature": 0.01, "top_p": 1e-6}
"""Above 0: less is too small for the numbers of an engine."""
MAX_ANSWERS, MAX_LOGPROBS, MAX_PROMPTS, MAX_BIASES = 128, 20, 256, 1024
MAX_CHARACTERS = 32
"""Characters per token of the context, in a text or in all texts of a list of messages."""
MAX_DEPTH, MAX_NUMBER = 16, 1 << 31


class ModelLimits(NamedTuple):
    vocab_size: int
    context_length: int


def filter_body(body: Any, model: ModelLimits, is_known: bool = False) -> dict[str, Any]:
    """For an engine: raises HttpError also where it could not sample."""
    kept = bound_body(body, model, is_known)
    for part in (kept, kept.get(SAMPLING_PARAMS) or {}):
        refuse_tiny(part)
    return kept


def bound_body(body: Any, model: ModelLimits, is_known: bool = False) -> dict[str, Any]:
    """The body without dropped keys; raises HttpError if it is not an object, or a value is invalid. `is_known`: the
    client has the key."""
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be an object")
    kept = {key: value for key, value in body.items() if not _is_dropped(key)}
    if isinstance(inner := kept.get(SAMPLING_PARAMS), dict):
        kept[SAMPLING_PARAMS] = {key: value for key, value in inner.items() if not _is_dropped(key)}
    for part in (kept, kept.get(SAMPLING_PARAMS) or {}):
        if not isinstance(part, dict):
            raise HttpError(400, f"{SAMPLING_PARAMS}: {shorten(part)} is not an object")
        for key, value in part.items():
            if value is not None:
                part[key] = _bounded(key, value, model, is_known)
    return kept


def _is_dropped(key: str) -> bool:
    """Also `<engine>_xargs`, the further arguments of an engine."""
    return key in DROPPED_KEYS or key.endswith("_xargs")


def filter_generation(body: Any, model: ModelLimits, is_known: bool = False) -> dict[str, Any]:
    """With the lowest priority, after all requests of the run."""
    return filter_body(body, model, is_known) | {"priority": CLIENT_PRIORITY}


def refuse_tiny(sampling: Mapping[str, Any]) -> None:
    """Raises HttpError for what is in range, but cannot be sampled by."""
    for key, least in SMALLEST.items():
        if 0 < (sampling.get(key) or 0) < least:
            raise HttpError(400, f"{key}: {sampling[key]} is too small")


def count_sequences(body: Mapping[str, Any]) -> int:
    """The number of answers that a filtered body requests."""
    prompts = max(_count_prompts(body.get(key)) for key in PROMPT_KEYS)
    answers: int = max(part.get(key) or 1 for part in (body, body.get(SAMPLING_PARAMS) or {}) for key in COUNT_KEYS)
    return prompts * answers


def _count_prompts(value: Any) -> int:
    return len(value) if isinstance(value, list) and value and isinstance(value[0], str | list) else 1


def _bounded(key: str, value: Any, model: ModelLimits, is_known: bool) -> Any:
    if key in LENGTH_KEYS:
        return min(_whole(key, value, -1 if key == "truncate_prompt_tokens" else 0, MAX_NUMBER), model.context_length)
    if key in COUNT_KEYS:
        return _whole(key, value, 1, MAX_ANSWERS)
    if key in LOGPROB_KEYS:
        return value if isinstance(value, bool) else _whole(key, value, -1, MAX_LOGPROBS)
    if key == "top_k":
        return min(_whole(key, value, -1, MAX_NUMBER), model.vocab_size)
    if key == "seed":
        return _whole(key, value, -(1 << 63), (1 << 64) - 1) % (1 << 63)
    if key in REAL_RANGES:
        return _real(key, value)
    if key in TOKEN_LIST_KEYS:
        return _tokens(key, value, model, MAX_STOP_TOKENS if key == "stop_token_ids" else model.vocab_size)
    if key in PROMPT_KEYS:
        return _prompt(key, value, model)
    if key in ("stop", "bad_words"):
        return _texts(key, value)
    if key == "logit_bias" and (not isinstance(value, dict) or len(value) > MAX_BIASES):
        raise HttpError(400, f"logit_bias: give an object of at most {MAX_BIASES} tokens")
    if key == SAMPLING_PARAMS:
        return value
    if not is_known and (key in GRAMMAR_KEYS or (key == "response_format" and "schema" in str(value))):
        raise HttpError(400, f"{key}: only clients with the key may send programs for the engine")
    characters = _check_rest(key, value, 0)
    if characters > MAX_CHARACTERS * model.context_length:
        raise HttpError(400, f"{key}: {characters} characters do not fit into {model.context_length} tokens of context")
    return value


def _whole(key: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise HttpError(400, f"{key}: {shorten(value)} is not a whole number from {least} to {most}")
    return value


def _real(key: str, value: Any) -> Any:
    least, most = REAL_RANGES[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise HttpError(400, f"{key}: {shorten(value)} is not a number from {least:g} to {most:g}")
    return value


def _tokens(key: str, value: Any, model: ModelLimits, most: int) -> Any:
    if not isinstance(value, list) or len(value) > most:
        raise HttpError(400, f"{key}: give a list of at most {most} token ids")
    for token in value:
        if type(token) is not int or not 0 <= token < model.vocab_size:
            raise HttpError(400, f"{key}: {shorten(token)} is not a token of this model (0 to {model.vocab_size - 1})")
    return value


def _prompt(key: str, value: Any, model: ModelLimits) -> Any:
    """A text, token ids, or a list of either."""
    if isinstance(value, str):
        if len(value) > MAX_CHARACTERS * model.context_length:
            raise HttpError(
                400, f"{key}: {len(value)} characters do not fit into {model.context_length} tokens of context"
            )
        return value
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > MAX_PROMPTS:
            raise HttpError(400, f"{key}: {len(value)} prompts are too many; send at most {MAX_PROMPTS} in one request")
        if any(isinstance(one, list) and one and isinstance(one[0], str | list) for one in value):
            raise HttpError(400, f"{key}: a list of prompts contains no further lists of lists")
        if len({type(one) for one in value}) > 1:
            raise HttpError(400, f"{key}: give either texts or lists of token ids")
        return [_prompt(key, one, model) for one in value]
    return _tokens(key, value, model, model.context_length)


def _texts(key: str, value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and len(text) <= MAX_STOP_LENGTH for text in texts):
        raise HttpError(400, f"{key}: {shorten(value)} is not a list of texts of at most {MAX_STOP_LENGTH} characters")
    if len(texts) > MAX_STOP_TEXTS:
        raise HttpError(400, f"{key}: {len(texts)} texts are too many; send at most {MAX_STOP_TEXTS}")
    return value


def _check_rest(key: str, value: Any, depth: int) -> int:
    """Bounds depth and numbers of other values (messages, tools, ...). Returns their number of characters: the chat
    template may put any text into the prompt."""
    if depth > MAX_DEPTH:
        raise HttpError(400, f"{key}: it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _check_rest(key, one, depth + 1) for name, one in value.items())
    if isinstance(value, list):
        return sum(_check_rest(key, one, depth + 1) for one in value)
    if isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise HttpError(400, f"{key}: {shorten(value)} is too large")
    return 0
