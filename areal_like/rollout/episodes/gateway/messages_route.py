"""`/v1/messages`: Anthropic's interface, whose blocks become messages of a chat and back."""

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from areal_like.data.chat_template import ASSISTANT, SYSTEM, USER, Message
from areal_like.process.errors import HttpError
from areal_like.process.http import json_response
from areal_like.process.plain_json import plain_json
from areal_like.rollout.episodes.gateway.answer_delivery import GatewayAnswer
from areal_like.rollout.episodes.gateway.call_tree import AgentCall, CallPrompt
from areal_like.rollout.episodes.gateway.chat_messages import TOOL, arguments_text, read_messages, read_text, read_tools
from areal_like.rollout.episodes.gateway.request_body import flag, read_body_object
from areal_like.rollout.episodes.gateway.session import AgentSession
from areal_like.serving.client_filter import filter_body
from areal_like.serving.requests import shorten

TEXT, TOOL_USE, TOOL_RESULT = "text", "tool_use", "tool_result"
NOT_SHOWN = ("thinking", "redacted_thinking")
"""Blocks of other models' answers. Those of the policy have its thoughts in their text."""


async def messages(request: web.Request, session: AgentSession) -> web.StreamResponse:
    body = await read_body_object(request, session.limits)
    return await session.pending.deliver(request, lambda: _answer(body, session))


async def count_tokens(request: web.Request, session: AgentSession) -> web.Response:
    body = await read_body_object(request, session.limits)
    return json_response({"input_tokens": len((await _prompt(body, session, _tools(body))).ids)})


async def _answer(body: dict[str, Any], session: AgentSession) -> GatewayAnswer:
    tools = _tools(body)
    _refuse_begun(body)
    stops = filter_body({"stop": _stop_sequences(body)}, session.limits, is_known=True)
    sampling = session.sampling.read({**body, **stops, "parallel_tool_calls": not _asks_one_call(body)})
    (call,) = await session.generate(await _prompt(body, session, tools), 1, sampling, tools)
    _make_objects(call)
    content = _content(body, call, stops["stop"] or ())
    return GatewayAnswer([call], content, _events(content) if flag(body, "stream") else None, ends_with_done=False)


def _refuse_begun(body: dict[str, Any]) -> None:
    """The template ends each message of the assistant: what follows would be another one."""
    given = body.get("messages")
    if not isinstance(given, list) or not given or not isinstance(given[-1], dict):
        return
    if given[-1].get("role") == ASSISTANT:
        message = "an answer whose beginning is given is not supported; end with a message of the user"
        raise HttpError(400, f"messages.{len(given) - 1}: {message}")


def _stop_sequences(body: dict[str, Any]) -> Any:
    given = body.get("stop_sequences")
    if given is not None and not isinstance(given, list):
        raise HttpError(400, "stop_sequences: give a list of texts")
    return given


def _asks_one_call(body: dict[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return isinstance(choice, dict) and bool(choice.get("disable_parallel_tool_use"))


async def _prompt(body: dict[str, Any], session: AgentSession, tools: list[dict[str, Any]]) -> CallPrompt:
    system = read_text("system", body.get("system"))
    begin = [{"role": SYSTEM, "content": system}] if system else []
    return await session.chat_prompt([*begin, *messages_of(body.get("messages"))], tools)


def messages_of(given: Any) -> list[Message]:
    """A result of a tool is a message of its own, as are the texts between them."""
    if not isinstance(given, list) or not given:
        raise HttpError(400, "messages: give a list of at least one message")
    shown: list[dict[str, Any]] = []
    for place, message in enumerate(given):
        key = f"messages.{place}"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in (USER, ASSISTANT):
            raise HttpError(400, f"{key}.role: a message is an object whose role is {USER} or {ASSISTANT}")
        content = message.get("content")
        if isinstance(content, str):
            shown.append({"role": role, "content": content})
        elif isinstance(content, list):
            shown += _of_blocks(f"{key}.content", role, content)
        else:
            raise HttpError(400, f"{key}.content: give a text or a list of blocks")
    return read_messages(shown)


def _of_blocks(key: str, role: str, blocks: list[Any]) -> Iterator[dict[str, Any]]:
    text: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        kind, at = block.get("type") if isinstance(block, dict) else None, f"{key}.{place}"
        if kind == TEXT:
            text.append(read_text(at, [block]))
        elif kind == TOOL_USE and role == ASSISTANT:
            if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
                raise HttpError(400, f"{at}: a call has a name and an object as its input")
            function = {"name": block["name"], "arguments": block["input"]}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == TOOL_RESULT and role == USER:
            if text:
                yield {"role": USER, "content": "".join(text)}
                text = []
            result = read_text(f"{at}.content", block.get("content"))
            yield {"role": TOOL, "content": result, "tool_call_id": block.get("tool_use_id")}
        elif kind not in NOT_SHOWN:
            raise HttpError(400, f"{at}.type: {shorten(kind)} is not supported in a message of the {role}")
    if role == ASSISTANT:
        yield {"role": ASSISTANT, "content": "".join(text), **({"tool_calls": calls} if calls else {})}
    elif text or not blocks:
        yield {"role": USER, "content": "".join(text)}


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    """As those of a chat."""
    choice, given = body.get("tool_choice"), body.get("tools")
    if given is None or (isinstance(choice, dict) and choice.get("type") == "none"):
        return []
    if not isinstance(given, list):
        raise HttpError(400, "tools: give a list of tools")
    return read_tools([_tool(place, tool) for place, tool in enumerate(given)])


def _tool(place: int, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "custom") not in ("custom", None):
        raise HttpError(400, f"tools.{place}: only tools of your own, with a name and an input_schema, are supported")
    described = {key: tool[key] for key in ("name", "description") if key in tool}
    return {"type": "function", "function": {**described, "parameters": tool.get("input_schema")}}


def _content(body: dict[str, Any], call: AgentCall, stops: list[str] | tuple[str, ...]) -> dict[str, Any]:
    called, text = call.reply.get("tool_calls", ()), call.reply["content"]
    blocks: list[dict[str, Any]] = [{"type": TEXT, "text": text}] if text or not called else []
    blocks += [
        {"type": TOOL_USE, "id": each["id"], "name": function["name"], "input": function["arguments"]}
        for each in called
        for function in [each["function"]]
    ]
    stop = call.sample.stop_text if call.sample.stop_text in stops else None
    reason = "tool_use" if called else "max_tokens" if call.sample.is_truncated else "end_turn"
    return {
        **{"id": call.id, "type": "message", "role": ASSISTANT, "model": str(body.get("model") or "policy")},
        "content": blocks,
        **{"stop_reason": reason if stop is None or called else "stop_sequence", "stop_sequence": stop},
        "usage": {"input_tokens": len(call.prompt.ids), "output_tokens": len(call.sample.token_ids)},
    }


def _make_objects(call: AgentCall) -> None:
    """Arguments are objects, as clients expect, whatever the model wrote; also in the message that clients repeat. They
    are read as numbers of 64 bits: a larger integer is a text, with all its digits."""
    for each in call.reply.get("tool_calls", ()):
        function = each["function"]
        arguments = plain_json(function["arguments"])
        function["arguments"] = arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _events(content: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    begun = {"stop_reason": None, "stop_sequence": None}
    usage = {**content["usage"], "output_tokens": 0}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**content, **begun, "content": [], "usage": usage}}
    ]
    for index, block in enumerate(content["content"]):
        is_text = block["type"] == TEXT
        delta: dict[str, Any] = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {
                "type": "input_json_delta",
                "partial_json": arguments_text({"function": {"arguments": block["input"]}}),
            }
        )
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ended = {key: content[key] for key in begun}
    events.append({"type": "message_delta", "delta": ended, "usage": content["usage"]})
    events.append({"type": "message_stop"})
    return [(event["type"], event) for event in events]
