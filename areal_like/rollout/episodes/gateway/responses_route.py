"""`/v1/responses`: OpenAI's other interface, whose items become messages of a chat and back."""

import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from areal_like.data.chat_template import ASSISTANT, SYSTEM, Message
from areal_like.process.errors import HttpError
from areal_like.rollout.episodes.gateway.answer_delivery import GatewayAnswer
from areal_like.rollout.episodes.gateway.call_tree import AgentCall
from areal_like.rollout.episodes.gateway.chat_messages import (
    TOOL,
    arguments_text,
    read_arguments,
    read_messages,
    read_text,
    read_tools,
)
from areal_like.rollout.episodes.gateway.chat_route import finish_reason, usage
from areal_like.rollout.episodes.gateway.request_body import flag, read_body_object, refuse_top_logprobs
from areal_like.rollout.episodes.gateway.session import AgentSession
from areal_like.serving.requests import shorten

CALL, CALL_OUTPUT, REASONING = "function_call", "function_call_output", "reasoning"
PLAIN_TEXT: tuple[Any, ...] = (None, {}, {"format": {"type": "text"}})


async def responses(request: web.Request, session: AgentSession) -> web.StreamResponse:
    body = await read_body_object(request, session.limits)
    return await session.pending.deliver(request, lambda: _answer(body, session))


async def _answer(body: dict[str, Any], session: AgentSession) -> GatewayAnswer:
    refuse_top_logprobs(body.get("top_logprobs"))
    before = _messages_before(body.get("previous_response_id"), session)
    messages = [*before, *messages_of(body.get("input"))]
    instructions = read_text("instructions", body.get("instructions"))
    shown = [{"role": SYSTEM, "content": instructions}, *messages] if instructions else messages
    if not shown:
        raise HttpError(400, "input: give a text or a list of items")
    tools = [] if body.get("tool_choice") == "none" else _tools(body.get("tools"))
    form = body.get("text")
    asked = {**body, "response_format": None if form in PLAIN_TEXT else form}
    prompt = await session.chat_prompt(shown, tools)
    (call,) = await session.generate(prompt, 1, session.sampling.read(asked), tools)
    session.conversations[call.id] = [*messages, call.reply]
    content = _content(body, call, tools)
    return GatewayAnswer([call], content, _events(content) if flag(body, "stream") else None, ends_with_done=False)


def messages_of(given: Any) -> list[Message]:
    """Calls of tools belong to the message of the assistant before them."""
    if given is None:
        return []
    if isinstance(given, str):
        return read_messages([{"role": "user", "content": given}])
    if not isinstance(given, list):
        raise HttpError(400, "input: give a text or a list of items")
    messages: list[Message] = []
    for place, item in enumerate(given):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            messages += read_messages([item])
        elif kind == CALL:
            if not messages or messages[-1]["role"] != ASSISTANT:
                messages.append({"role": ASSISTANT, "content": ""})
            messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), _call(place, item)]}
        elif kind == CALL_OUTPUT:
            text = read_text(f"input.{place}.output", item.get("output"))
            messages.append({"role": TOOL, "content": text, "tool_call_id": str(item.get("call_id", ""))})
        elif kind != REASONING:
            raise HttpError(400, f"input.{place}.type: {shorten(kind)} is not supported")
    return messages


def _call(place: int, item: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(item.get("name"), str):
        raise HttpError(400, f"input.{place}.name: a call names its function")
    function = {"name": item["name"], "arguments": read_arguments(item.get("arguments"))}
    return {"id": str(item.get("call_id", "")), "type": "function", "function": function}


def _tools(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        return read_tools(given)
    known = ("name", "description", "parameters")
    return read_tools(
        [
            {"type": tool.get("type"), "function": {key: tool[key] for key in known if key in tool}}
            if isinstance(tool, dict)
            else tool
            for tool in given
        ]
    )


def _messages_before(response: Any, session: AgentSession) -> Sequence[Message]:
    if response is None:
        return ()
    if not isinstance(response, str) or response not in session.conversations:
        raise HttpError(400, f"previous_response_id: no answer of this episode is {shorten(response)}")
    return session.conversations[response]


def _content(body: dict[str, Any], call: AgentCall, tools: list[dict[str, Any]]) -> dict[str, Any]:
    is_complete = finish_reason(call) == "stop"
    counted = usage([call])
    return {
        **{"id": call.id, "object": "response", "created_at": int(time.time()), "error": None},
        **{"model": str(body.get("model") or "policy"), "status": "completed" if is_complete else "incomplete"},
        "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
        **{"instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "top_p": None},
        **{"tool_choice": "auto", "tools": body.get("tools") or [] if tools else []},
        "previous_response_id": body.get("previous_response_id"),
        "output": _output(call),
        "usage": {
            **{"input_tokens": counted["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0}},
            **{"output_tokens": counted["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0}},
            "total_tokens": counted["total_tokens"],
        },
    }


def _output(call: AgentCall) -> list[dict[str, Any]]:
    calls, text = call.reply.get("tool_calls", ()), call.reply["content"]
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"type": "message", "id": f"{call.id}-text", "role": ASSISTANT, "status": "completed", "content": [part]}
    called = [
        {
            **{"type": CALL, "id": f"{call.id}-{place}", "call_id": each["id"], "status": "completed"},
            **{"name": each["function"]["name"], "arguments": arguments_text(each)},
        }
        for place, each in enumerate(calls)
    ]
    return [*([message] if text or not calls else []), *called]


def _events(content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    opened = {**content, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[dict[str, Any]] = [
        {"type": f"response.{kind}", "response": opened} for kind in ("created", "in_progress")
    ]
    for index, item in enumerate(content["output"]):
        place = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        begun = {**item, "status": "in_progress", **empty}
        events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        if item["type"] == "message":
            part, at = item["content"][0], {**place, "content_index": 0}
            text = {**at, "logprobs": []}
            events += [
                {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
                {"type": "response.output_text.delta", **text, "delta": part["text"]},
                {"type": "response.output_text.done", **text, "text": part["text"]},
                {"type": "response.content_part.done", **at, "part": part},
            ]
        else:
            arguments, name = item["arguments"], "response.function_call_arguments"
            events.append({"type": f"{name}.delta", **place, "delta": arguments})
            events.append({"type": f"{name}.done", **place, "name": item["name"], "arguments": arguments})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{content['status']}", "response": content})
    return [(event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events)]
