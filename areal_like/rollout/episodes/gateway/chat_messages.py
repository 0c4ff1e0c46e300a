"""Messages of OpenAI's chat interface as chat templates take them, and the message of an answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_like.data.chat_template import ASSISTANT, SYSTEM, USER, Message
from areal_like.data.conversation_text import answer_message
from areal_like.process.errors import HttpError
from areal_like.rollout.episodes.tools.call_format import Arguments, CallFormat, ToolCall

TOOL = "tool"
ROLES: Mapping[str, str] = {"developer": SYSTEM, **{role: role for role in (SYSTEM, USER, ASSISTANT, TOOL)}}
"""Role of a client -> of a template."""
TEXT_PARTS = ("text", "input_text", "output_text")


def read_messages(value: Any) -> list[Message]:
    """Raises HttpError for messages that no template can show."""
    if not isinstance(value, list) or not value:
        raise HttpError(400, "messages: give a list of at least one message")
    return [_message(f"messages.{place}", each) for place, each in enumerate(value)]


def read_tools(value: Any) -> list[dict[str, Any]]:
    """Descriptions of functions."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise HttpError(400, "tools: give a list of functions")
    for place, tool in enumerate(value):
        is_function = isinstance(tool, dict) and tool.get("type") == "function"
        described = tool.get("function") if is_function else None
        if not isinstance(described, dict) or not isinstance(described.get("name"), str):
            raise HttpError(400, f"tools.{place}: only functions with a name are supported")
    return value


def arguments_of(tools: Sequence[dict[str, Any]]) -> dict[str, Arguments]:
    """Of each described function, by its name."""
    return {tool["function"]["name"]: _arguments(tool["function"].get("parameters")) for tool in tools}


def _arguments(parameters: Any) -> Arguments:
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    known = properties if isinstance(properties, dict) else {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in known.items()}


def read_text(key: str, content: Any) -> str:
    """Of a text, or of a list of parts that are texts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise HttpError(400, f"{key}: give a text or a list of parts")
    texts = []
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise HttpError(400, f"{key}.{place}: only parts of text are supported")
        texts.append(part["text"])
    return "".join(texts)


def _message(key: str, message: Any) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or message["role"] not in ROLES:
        raise HttpError(400, f"{key}.role: a message is an object whose role is one of {', '.join(ROLES)}")
    role = ROLES[message["role"]]
    read: Message = {"role": role, "content": read_text(f"{key}.content", message.get("content"))}
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            read[name] = message[name]
    if role == ASSISTANT and message.get("tool_calls"):
        if not isinstance(message["tool_calls"], list):
            raise HttpError(400, f"{key}.tool_calls: give a list")
        read["tool_calls"] = [_call(f"{key}.tool_calls.{at}", each) for at, each in enumerate(message["tool_calls"])]
    return read


def _call(key: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise HttpError(400, f"{key}: a call has a function with a name")
    return {
        "id": call["id"] if isinstance(call.get("id"), str) else "",
        "type": "function",
        "function": {"name": function["name"], "arguments": read_arguments(function.get("arguments"))},
    }


def read_arguments(arguments: Any) -> Any:
    """Templates show an object; what is no JSON stays a text."""
    if not isinstance(arguments, str):
        return arguments if isinstance(arguments, dict) else {}
    try:
        return json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        return arguments


def arguments_text(call: Mapping[str, Any]) -> str:
    """JSON in a text, as clients expect."""
    return json.dumps(call["function"]["arguments"], separators=(",", ":"))


class WrittenAnswer(NamedTuple):
    """`reply` has the calls of tools as a list, and the text before them. Malformed calls and those of tools that there
    are not are `num_errors` of all `num_calls`."""

    reply: Message
    written: Message
    num_calls: int = 0
    num_errors: int = 0


def read_answer(
    text: str, raw: str, number: int, call_format: CallFormat, tools: Sequence[dict[str, Any]]
) -> WrittenAnswer:
    """`text` is without special tokens, `raw` with them; without `tools` no text is a call."""
    written = answer_message(raw)
    known = arguments_of(tools)
    found = call_format.parse(raw, known) if tools else []
    calls = [sent for call in found if (sent := _as_sent(call)) is not None]
    counts = (len(found), len(found) - sum(call.name in known for call in calls))
    if not calls:
        has_channels = written["content"] != raw
        return WrittenAnswer(written if has_channels else {"role": ASSISTANT, "content": text}, written, *counts)
    called = [
        {
            "id": f"c{number % 100000:05d}{place % 1000:03d}",  # nine signs, as some templates require
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(calls)
    ]
    before = call_format.text_before(raw)
    return WrittenAnswer({"role": ASSISTANT, "content": before, "tool_calls": called}, written, *counts)


def _as_sent(call: ToolCall) -> ToolCall | None:
    """As a client reads it, which may repeat it. None for one that cannot be sent: a call of Python may have a set,
    bytes or half of a character."""
    if call.problem:
        return None
    try:
        text = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
        return call._replace(arguments=json.loads(text.encode()))
    except (TypeError, ValueError, RecursionError):
        return None
