"""`/v1/chat/completions`, also with the prompt as ids in `tokens` (`/v1/chat/completions/tokens`)."""

import time
from typing import Any

from aiohttp import web

from areal_like.data.chat_template import Message
from areal_like.process.errors import HttpError
from areal_like.rollout.episodes.gateway.answer_delivery import GatewayAnswer
from areal_like.rollout.episodes.gateway.call_tree import AgentCall
from areal_like.rollout.episodes.gateway.chat_messages import arguments_text, read_messages, read_tools
from areal_like.rollout.episodes.gateway.request_body import flag, prompt_ids, read_body_object, refuse_top_logprobs
from areal_like.rollout.episodes.gateway.session import AgentSession


async def chat_completions(request: web.Request, session: AgentSession) -> web.StreamResponse:
    body = await read_body_object(request, session.limits)
    return await session.pending.deliver(request, lambda: _answer(body, session))


async def _answer(body: dict[str, Any], session: AgentSession) -> GatewayAnswer:
    tools = read_tools(body.get("tools")) if body.get("tool_choice") != "none" else []
    if body.get("functions"):
        raise HttpError(400, "functions: is not supported; use tools")
    if flag(body, "continue_final_message") or body.get("add_generation_prompt") is False:
        message = "an answer whose beginning is given is not supported; end with a message of the user"
        raise HttpError(400, f"continue_final_message: {message}")
    refuse_top_logprobs(body.get("top_logprobs"))
    sampling, n = session.sampling.read(body), body.get("n") or 1
    if body.get("tokens") is not None:
        prompt = session.tree.ids_prompt(prompt_ids("tokens", body["tokens"]))
    else:
        prompt = await session.chat_prompt(read_messages(body.get("messages")), tools)
    calls = await session.generate(prompt, n, sampling, tools)
    content = _content(body, session, calls)
    return GatewayAnswer(calls, content, _chunks(body, content) if flag(body, "stream") else None)


def _content(body: dict[str, Any], session: AgentSession, calls: list[AgentCall]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "id": calls[0].id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(body.get("model") or "policy"),
        "choices": [_choice(place, body, session, call) for place, call in enumerate(calls)],
        "usage": usage(calls),
    }
    if flag(body, "return_token_ids"):
        content["prompt_token_ids"] = calls[0].prompt.ids
    return content


def usage(calls: list[AgentCall]) -> dict[str, int]:
    prompt, answers = len(calls[0].prompt.ids), sum(len(call.sample.token_ids) for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": answers, "total_tokens": prompt + answers}


def asks_usage(body: dict[str, Any]) -> bool:
    """Whether the last chunk of a stream shall have it."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _choice(place: int, body: dict[str, Any], session: AgentSession, call: AgentCall) -> dict[str, Any]:
    message = reply_message(call.reply)
    finish = "tool_calls" if "tool_calls" in message else finish_reason(call)
    choice: dict[str, Any] = {"index": place, "id": call.id, "message": message, "finish_reason": finish}
    choice["logprobs"] = None
    if body.get("logprobs"):
        choice["logprobs"] = {"content": _logprobs(body, session, call), "refusal": None}
    if flag(body, "return_token_ids"):
        choice["token_ids"] = call.sample.token_ids
    return choice


def finish_reason(call: AgentCall) -> str:
    return "length" if call.sample.finish == "length" else "stop"


def reply_message(reply: Message) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"], "refusal": None}
    if calls := reply.get("tool_calls"):
        message["content"] = reply["content"] or None
        message["tool_calls"] = [
            {**call, "function": {"name": call["function"]["name"], "arguments": arguments_text(call)}}
            for call in calls
        ]
    return message


def _logprobs(body: dict[str, Any], session: AgentSession, call: AgentCall) -> list[dict[str, Any]]:
    by_id = flag(body, "return_tokens_as_token_ids")
    texts = session.tokenizer.decode_all([[token] for token in call.sample.token_ids], skip_special=False)
    return [
        {
            "token": f"token_id:{token}" if by_id else text,
            "logprob": logprob,
            "bytes": list(text.encode()),
            "top_logprobs": [],
        }
        for token, logprob, text in zip(call.sample.token_ids, call.sample.logprobs, texts, strict=True)
    ]


def _chunks(body: dict[str, Any], content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    head = {**{key: content[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    chunks = []
    for choice in content["choices"]:
        message, place = choice["message"], choice["index"]
        delta: dict[str, Any] = {"role": "assistant", "content": message["content"] or ""}
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        more = {key: choice[key] for key in ("id", "token_ids") if key in choice}
        first = {"index": place, "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"], **more}
        last = {"index": place, "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": None}
        chunks += [{**head, "choices": [first]}, {**head, "choices": [last]}]
    if "prompt_token_ids" in content:
        chunks[0]["prompt_token_ids"] = content["prompt_token_ids"]
    if asks_usage(body):
        chunks.append({**head, "choices": [], "usage": content["usage"]})
    return [("", chunk) for chunk in chunks]
