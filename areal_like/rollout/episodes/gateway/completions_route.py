"""`/v1/completions`: the prompt as a text, or as ids."""

import itertools
import time
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.rollout.episodes.gateway.answer_delivery import GatewayAnswer
from areal_like.rollout.episodes.gateway.call_tree import AgentCall
from areal_like.rollout.episodes.gateway.chat_route import asks_usage, finish_reason, usage
from areal_like.rollout.episodes.gateway.request_body import flag, prompt_ids, read_body_object
from areal_like.rollout.episodes.gateway.session import AgentSession

DEFAULT_MAX_TOKENS = 16
"""Of OpenAI's interface."""


async def completions(request: web.Request, session: AgentSession) -> web.StreamResponse:
    body = await read_body_object(request, session.limits)
    return await session.pending.deliver(request, lambda: _answer(body, session))


async def _answer(body: dict[str, Any], session: AgentSession) -> GatewayAnswer:
    for key in ("echo", "suffix", "prompt_logprobs"):
        if body.get(key):
            raise HttpError(400, f"{key}: is not supported; leave it out")
    logprobs = body.get("logprobs")
    if isinstance(logprobs, int) and logprobs > 1:
        raise HttpError(400, f"logprobs: {logprobs} is not supported; 1 has the sampled tokens")
    given = body.get("prompt")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str) and given:
        prompt = await session.text_prompt(given)
    else:
        prompt = session.tree.ids_prompt(prompt_ids("prompt", given))
    n, best_of = body.get("n") or 1, body.get("best_of")
    asked = {**body, "best_of": None if best_of == n else best_of}  # the best of as many as are given are all
    calls = await session.generate(prompt, n, session.sampling.read(asked, DEFAULT_MAX_TOKENS))
    content = _content(body, session, calls)
    return GatewayAnswer(calls, content, _chunks(body, content) if flag(body, "stream") else None)


def _content(body: dict[str, Any], session: AgentSession, calls: list[AgentCall]) -> dict[str, Any]:
    return {
        "id": calls[0].id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": str(body.get("model") or "policy"),
        "choices": [_choice(place, body, session, call) for place, call in enumerate(calls)],
        "usage": usage(calls),
    }


def _choice(place: int, body: dict[str, Any], session: AgentSession, call: AgentCall) -> dict[str, Any]:
    sample = call.sample
    choice: dict[str, Any] = {"index": place, "id": call.id, "text": sample.text}
    choice["finish_reason"] = finish_reason(call)
    choice["logprobs"] = None
    if body.get("logprobs") is not None and body["logprobs"] is not False:
        texts = session.tokenizer.decode_all([[token] for token in sample.token_ids], skip_special=False)
        by_id = flag(body, "return_tokens_as_token_ids")
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in sample.token_ids] if by_id else texts,
            "token_logprobs": sample.logprobs,
            "top_logprobs": None,
            "text_offset": list(itertools.accumulate((len(text) for text in texts[:-1]), initial=0)),
        }
    if flag(body, "return_token_ids"):
        choice |= {"token_ids": sample.token_ids, "prompt_token_ids": call.prompt.ids}
    return choice


def _chunks(body: dict[str, Any], content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    head = {key: value for key, value in content.items() if key != "usage"}
    chunks = [{**head, "choices": [choice]} for choice in content["choices"]]
    if asks_usage(body):
        chunks.append({**head, "choices": [], "usage": content["usage"]})
    return [("", chunk) for chunk in chunks]
