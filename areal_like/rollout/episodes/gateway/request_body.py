"""Reads the bodies of an agent's requests: an object with numbers in range, ids of the model, true or false."""

from typing import Any

import orjson
from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import read_json
from areal_like.rollout.episodes.gateway.session import CONTEXT_EXCEEDED, no_room
from areal_like.serving.client_filter import ModelLimits, bound_body
from areal_like.serving.requests import shorten

FLAGS = ("stream", "return_token_ids", "return_tokens_as_token_ids")
NOT_FILTERED = ("messages", "tools", "input", "system", "text")
"""Conversations are bounded by the size of a body, and by the tokens that they become, as is a `prompt` that is a text.
`text` is the format of an answer; interfaces of engines have a prompt there."""
IDS = ("prompt", "tokens")
"""A prompt may be a list of token ids."""


async def read_body_object(request: web.Request, limits: ModelLimits) -> dict[str, Any]:
    """Raises HttpError."""
    try:
        body = await read_json(request)
    except (orjson.JSONDecodeError, RecursionError) as broken:
        raise HttpError(400, f"the body is not JSON: {broken}") from broken
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be an object")
    kept = {key: body[key] for key in NOT_FILTERED if key in body}
    if isinstance(body.get("prompt"), str):
        kept["prompt"] = body["prompt"]
    for key in IDS:
        _check_room(body.get(key), limits.context_length)
    try:
        filtered = bound_body({key: value for key, value in body.items() if key not in kept}, limits, is_known=True)
    except RecursionError as deep:
        raise HttpError(400, "the body is nested too deeply") from deep
    for key in FLAGS:
        flag(filtered, key)
    return {**filtered, **kept}


def _check_room(prompt: Any, context_length: int) -> None:
    """Ids without room get the code that a text without room gets. `prompt` may be a list of prompts."""
    prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else [prompt]
    longest = max((len(each) for each in prompts if isinstance(each, list)), default=0)
    if longest > context_length:
        raise HttpError(400, f"{CONTEXT_EXCEEDED}: the prompt has {longest} tokens and {no_room(context_length)}")


def flag(body: dict[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise HttpError(400, f"{key}: {shorten(value)} is neither true nor false")
    return bool(value)


def prompt_ids(key: str, value: Any) -> list[int]:
    """Checked to be tokens of the model already."""
    if not isinstance(value, list) or not value or not all(type(token) is int for token in value):
        raise HttpError(400, f"{key}: give at least one token id")
    return value


def refuse_top_logprobs(value: Any) -> None:
    if value:
        raise HttpError(400, f"top_logprobs: {shorten(value)} is not supported; logprobs has the sampled tokens")
